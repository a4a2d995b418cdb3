"""A dataset decoded once, as .npy files that every process maps instead of loading.

All simulated clients then share one copy in the page cache, and a client's start costs milliseconds. The cache can be
deleted at any time. A manifest records what was written: every process compares sizes and times with it. The process
that checks a run also compares digests, because a failing disk changes neither size nor time. If anything differs, the
dataset is decoded again.
"""

import hashlib
import logging
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pydantic import TypeAdapter

from sofed_flwr.core.errors import DamagedCacheError
from sofed_flwr.core.records import LabeledImages, Split
from sofed_flwr.datasets.base import Dataset
from sofed_flwr.datasets.cache_folder import cache_root, locked, unwritable
from sofed_flwr.storage.atomic_files import write_atomically

log = logging.getLogger(__name__)

HALVES = ("train", "test")
PARTS = ("images", "labels", "groups")
MANIFEST = "manifest.json"
LAYOUT = 3
"""Version of the files in a cached folder; part of its name, so that an older one is never misread."""


@dataclass(frozen=True)
class Written:
    """A file as it was written."""

    bytes: int
    mtime_ns: int
    blake2b: str


MANIFESTS = TypeAdapter(dict[str, Written])


def open_split(dataset: Dataset, thorough: bool = True) -> Split:
    """The dataset's images as read-only memory maps, decoding it first if there are none or they are damaged.

    `thorough` reads every byte once, to compare digests.
    """
    name = hashlib.sha256(os.fsencode(f"{LAYOUT}:{dataset.fingerprint()}")).hexdigest()[:16]
    folder = cache_root() / name
    try:
        return _mapped(folder, digests=thorough)
    except DamagedCacheError as error:
        if folder.exists():
            log.warning("%s", error)
    with locked(folder.with_name(f"{name}.lock")):
        try:
            _mapped(folder, digests=True, times=False)  # another process may have filled it meanwhile
            _write_manifest(folder)  # the same bytes with other times: a copy
        except DamagedCacheError:
            _fill(folder, dataset.load())
        except OSError as error:
            raise unwritable(folder, error) from error
        return _mapped(folder, digests=False)


def _mapped(folder: Path, digests: bool, times: bool = True) -> Split:
    """The arrays, if their files are those of the manifest, by size, and by digests or times if wanted."""
    try:
        manifest = MANIFESTS.validate_json((folder / MANIFEST).read_bytes())
        if manifest.keys() != {f"{half}_{part}.npy" for half in HALVES for part in PARTS}:
            raise DamagedCacheError(f"{folder / MANIFEST} names other files")
        for name, written in manifest.items():
            file, status = folder / name, (folder / name).stat()
            same_time = not times or status.st_mtime_ns == written.mtime_ns
            if status.st_size != written.bytes or not same_time or (digests and _digest(file) != written.blake2b):
                raise DamagedCacheError(f"{file} has changed since it was written")
        halves = [[np.load(folder / f"{half}_{part}.npy", mmap_mode="r") for part in PARTS] for half in HALVES]
    except (OSError, ValueError, EOFError) as error:
        raise DamagedCacheError(f"{folder} cannot be read ({type(error).__name__})") from error
    return Split(*(LabeledImages(*arrays) for arrays in halves))


def _digest(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "blake2b").hexdigest()


def _fill(folder: Path, split: Split) -> None:
    """Write to another folder, sync, rename: a power cut leaves a complete cache or none."""
    beside = folder.with_name(f".filling-{folder.name}")
    try:
        _remove(beside)
        beside.mkdir(mode=0o700)
        for half, data in zip(HALVES, (split.train, split.test), strict=True):
            for part in PARTS:
                with (beside / f"{half}_{part}.npy").open("wb") as file:
                    np.save(file, getattr(data, part))
                    file.flush()
                    os.fsync(file.fileno())
        _write_manifest(beside)
        _remove(folder)
        beside.rename(folder)
    except OSError as error:
        _remove(beside)
        raise unwritable(folder.parent, error) from error


def _write_manifest(folder: Path) -> None:
    """Of the files as they are; the folder is synced as well."""
    manifest = {}
    for file in sorted(folder.glob("*.npy")):
        status = file.stat()
        manifest[file.name] = Written(status.st_size, status.st_mtime_ns, _digest(file))
    write_atomically(folder / MANIFEST, MANIFESTS.dump_json(manifest))


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
