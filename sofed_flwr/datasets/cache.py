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
PARTS = ("images", "labels", "groups")
LAYOUT = 2
"""Changes with the files of a cached folder, and with it the folder's name: an older one is never misread."""


def open_split(dataset: Dataset) -> Split:
    """The dataset's images as read-only memory maps, decoding it first if nobody has."""
    folder = cache_root() / hashlib.sha256(f"{LAYOUT}:{dataset.fingerprint()}".encode()).hexdigest()[:16]
    if not folder.exists():
        _fill(folder, dataset.load())
    halves = ((np.load(folder / f"{half}_{part}.npy", mmap_mode="r") for part in PARTS) for half in HALVES)
    return Split(*(LabeledImages(*arrays) for arrays in halves))


def cache_root() -> Path:
    """Where decoded datasets lie, and downloaded ones unless the user says otherwise."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("SOFED_CACHE") or Path(cache) / "sofed_flwr")


def _fill(folder: Path, split: Split) -> None:
    """Write beside, then rename: of two processes that decode at once, one wins and nobody sees half a cache."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".filling-"))
    try:
        for half, data in zip(HALVES, (split.train, split.test), strict=True):
            for part in PARTS:
                np.save(beside / f"{half}_{part}.npy", getattr(data, part))
        beside.rename(folder)
    except OSError:
        shutil.rmtree(beside, ignore_errors=True)
        if not folder.exists():
            raise
