"""The records that the parts of SOFed pass to each other: frozen, without logic.

Pixels are uint8 (n, 3, H, W) in all of them; they become float in `views/` only. `LabeledImages` is the one
record with labels: it ends at the stream order and at the evaluation, and never reaches a trainer or a policy.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

State = dict[str, Tensor]
"""Named tensors of a model, as in `nn.Module.state_dict`."""

Pixels = NDArray[np.uint8]
Labels = NDArray[np.int64]
Indices = NDArray[np.int64]


@dataclass(frozen=True)
class LabeledImages:
    """Images (n, 3, H, W) with one class per image, and coarser classes where the stream is to be ordered by those."""

    images: Pixels
    labels: Labels
    coarse: Labels | None = None

    @property
    def groups(self) -> Labels:
        """What the stream's order and the partition call a class; the evaluation always goes by `labels`."""
        return self.labels if self.coarse is None else self.coarse

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Split:
    """A dataset: the images the devices stream, and those that only the evaluation sees."""

    train: LabeledImages
    test: LabeledImages


@dataclass(frozen=True)
class Features:
    """Frozen-encoder features (n, d) with their labels (n,)."""

    values: Tensor
    labels: Tensor


@dataclass(frozen=True)
class Pool:
    """B ∪ X, what a policy chooses from: the buffer's entries first, then the new segment.

    `scores` holds NaN where an entry was never scored; `ages` counts the iterations an entry has stayed (0 = new).
    `columns` is what the policy noted of the entries it kept: one row per entry, NaN for the new ones.
    """

    images: Tensor
    scores: Tensor
    ages: Tensor
    columns: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def is_new(self) -> Tensor:
        """Mask (n,) of the entries of X."""
        return self.ages == 0

    def column(self, name: str) -> Tensor:
        """One number per entry (n,), float64; NaN where none was noted, by this policy or by another one before it."""
        noted = self.columns.get(name)
        if noted is None or noted.shape != self.ages.shape:
            return torch.full(self.ages.shape, torch.nan, dtype=torch.float64)
        return noted.double()

    def __len__(self) -> int:
        return len(self.ages)


@dataclass(frozen=True)
class Selection:
    """A policy's answer: which pool entries stay, the scores of the whole pool, how many buffer entries it rescored.

    `columns` is whatever else the policy has to know of an entry at the next selection, for the whole pool.
    """

    keep: Tensor
    scores: Tensor
    rescored: int = 0
    columns: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Update:
    """What one device sends after one round: the shared model and a few counters, nothing else."""

    device: int
    round: int
    shared: State
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Noise:
    """What protects a released model: Gaussian noise, in clipping norms, on the sum of the clients' clipped updates."""

    noise_multiplier: float
    clipping_norm: float
    clients: int
    delta: float


@dataclass(frozen=True)
class Release:
    """A global model that left the server, or may have; without noise nothing protects it."""

    run: str
    round: int
    noise: Noise | None
