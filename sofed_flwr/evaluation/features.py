"""Frozen features, extracted once for all evaluators, and a check that the encoder did not change.

The check is the idea of MoCo's `sanity_check`: several public linear probes leave BatchNorm in training mode and so
move the encoder they measure.
"""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from sofed_flwr.core.records import Features, LabeledImages


def extract(encode: Callable[[Tensor], Tensor], data: LabeledImages, batch: int = 256) -> Features:
    """Features of all images, in order, as float32 on the CPU.

    `encode` takes uint8 (n, 3, H, W) and returns (n, d); it brings its own views, eval mode and no_grad. Batches run
    side by side, one thread each: torch's own threads wait for each other at every operation, which on cores shared
    with other work was measured 2 to 10 times slower than a single thread.
    """

    def encode_from(start: int) -> Tensor:
        # np.array copies: the images may be a read-only memmap, which a tensor must not share
        return encode(torch.from_numpy(np.array(data.images[start : start + batch]))).detach().float().cpu()

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        values = list(pool.map(encode_from, range(0, len(data), batch)))
    return Features(torch.cat(values), torch.from_numpy(np.array(data.labels)))


@contextmanager
def untouched(module: nn.Module) -> Iterator[None]:
    """Raise AssertionError if the block changes a parameter, a buffer or a training flag of `module`."""
    before = {name: tensor.detach().clone() for name, tensor in _tensors(module).items()}
    modes = _modes(module)
    yield
    after = _tensors(module)
    for name in before | after:
        if name not in before or name not in after or not _same_bits(before[name], after[name]):
            raise AssertionError(f"the encoder's tensor '{name}' changed; it must stay frozen")
    for name, mode in _modes(module).items():
        if mode != modes.get(name):
            raise AssertionError(f"the training flag of '{name}' is {mode}, was {modes.get(name)}")


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and all buffers by name; `state_dict` would leave out the non-persistent ones."""
    return dict(module.named_parameters()) | dict(module.named_buffers())


def _modes(module: nn.Module) -> dict[str, bool]:
    return {name or type(module).__name__: part.training for name, part in module.named_modules()}


def _same_bits(a: Tensor, b: Tensor) -> bool:
    """Equality of the stored bytes, so that a NaN equals itself: a diverged encoder is still unchanged."""
    same_kind = a.shape == b.shape and a.dtype == b.dtype
    return same_kind and torch.equal(a.reshape(-1).view(torch.uint8), b.detach().reshape(-1).view(torch.uint8))
