"""The classes of images that lost their labels on the way: found again by their pixels."""

import hashlib
from collections.abc import Callable

import torch
from torch import Tensor

from sofed_flwr.core.records import LabeledImages

UNKNOWN = -1


class KnownImages:
    """`load` opens the labeled images when they are first asked for."""

    def __init__(self, load: Callable[[], LabeledImages]) -> None:
        self._load = load
        self._classes: dict[bytes, int] = {}

    def classes_of(self, images: Tensor) -> Tensor:
        """What the stream calls the class of each of the images uint8 (n, 3, H, W); UNKNOWN for one never seen."""
        if not self._classes:
            known = self._load()
            pairs = zip(known.images, known.groups, strict=True)
            self._classes = {_digest(image.tobytes()): int(label) for image, label in pairs}
        return torch.tensor([self._classes.get(_digest(image.numpy().tobytes()), UNKNOWN) for image in images])


def _digest(pixels: bytes) -> bytes:
    return hashlib.blake2b(pixels, digest_size=16).digest()
