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
    before = _contents(module)
    yield
    after = _contents(module)
    for name in before | after:
        if before.get(name) != after.get(name):
            raise AssertionError(f"the encoder's {name} changed; it must stay frozen")


def _contents(module: nn.Module) -> dict[str, object]:
    """All tensors (`state_dict` would leave out non-persistent buffers), then the training flags.

    Tensors are compared as bytes, so that a NaN equals itself: a diverged encoder is still unchanged.
    """
    contents: dict[str, object] = {}
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        content = tensor.detach().reshape(-1).view(torch.uint8).cpu().numpy().tobytes()
        contents[f"tensor '{name}'"] = (tensor.shape, tensor.dtype, content)
    for name, part in module.named_modules():
        contents[f"training flag of '{name or type(module).__name__}'"] = part.training
    return contents
