"""A dataset decoded once, as .npy files that every process maps instead of loading.

All simulated clients then share one copy in the page cache, and a client's start costs milliseconds. The cache lives in
`$SOFED_CACHE`, else in the user's cache directory, and can be deleted at any time.
"""

import hashlib
import os
import shutil
import tempfile
from pathlib import Path

import numpy as np

from sofed_flwr.contracts import LabeledImages, Split
from sofed_flwr.datasets.base import Dataset

HALVES = ("train", "test")


def open_split(dataset: Dataset) -> Split:
    """The dataset's images as read-only memory maps, decoding it first if nobody has."""
    folder = _root() / hashlib.sha256(dataset.fingerprint().encode()).hexdigest()[:16]
    if not folder.exists():
        _fill(folder, dataset.load())
    halves = (
        LabeledImages(np.load(folder / f"{half}_images.npy", mmap_mode="r"), np.load(folder / f"{half}_labels.npy"))
        for half in HALVES
    )
    return Split(*halves)


def _fill(folder: Path, split: Split) -> None:
    """Write beside, then rename: of two processes that decode at once, one wins and nobody sees half a cache."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".filling-"))
    try:
        for half, data in zip(HALVES, (split.train, split.test), strict=True):
            np.save(beside / f"{half}_images.npy", data.images)
            np.save(beside / f"{half}_labels.npy", data.labels)
        beside.rename(folder)
    except OSError:
        shutil.rmtree(beside, ignore_errors=True)
        if not folder.exists():
            raise


def _root() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("SOFED_CACHE") or Path(cache) / "sofed_flwr")
