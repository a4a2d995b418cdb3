"""Tiny files in the formats CIFAR and SVHN are published in, with torchvision told their checksums."""

import hashlib
import pickle
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.io import savemat
from torchvision import datasets

COUNTS = {"train": 50, "test": 20}


def md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes()).hexdigest()


def cifar_content(count: int, names: tuple[str, ...]) -> dict[str, Any]:
    """Image i has class i % 10 (coarse: that // 5) and pixels i in red, 100 in green, 200 in blue."""
    planes = np.stack(np.broadcast_arrays(np.arange(count)[:, None], 100, 200), axis=1)  # (n, 3, 1)
    labels = (np.arange(count) % 10).tolist()
    values = {"labels": labels, "fine_labels": labels, "coarse_labels": [label // 5 for label in labels]}
    pixels = np.repeat(planes, 32 * 32, axis=2).reshape(count, -1).astype(np.uint8)
    return {"data": pixels} | {name: values[name] for name in names}


def write_cifar(root: Path, source: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The archive of `datasets.CIFAR10` or `CIFAR100`; the extracted files are not left behind."""
    names = ("labels",) if source is datasets.CIFAR10 else ("fine_labels", "coarse_labels")
    folder = root / source.base_folder
    folder.mkdir(parents=True)
    for half, count in COUNTS.items():
        files = [name for name, _ in getattr(source, f"{half}_list")]
        for name in files:
            (folder / name).write_bytes(pickle.dumps(cifar_content(count // len(files), names)))
        monkeypatch.setattr(source, f"{half}_list", [[name, md5(folder / name)] for name in files])
    meta = folder / source.meta["filename"]
    meta.write_bytes(pickle.dumps({source.meta["key"]: list("abcdefghij")}))
    monkeypatch.setattr(source, "meta", source.meta | {"md5": md5(meta)})
    archive = root / source.filename
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(folder, arcname=source.base_folder)
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    monkeypatch.setattr(source, "tgz_md5", md5(archive))
    return archive


def write_svhn(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Image i has pixels i and the digit i % 10, of which 0 is written as 10."""
    root.mkdir(parents=True)
    lists = dict(datasets.SVHN.split_list)
    for half, count in COUNTS.items():
        images = np.broadcast_to(np.arange(count), (32, 32, 3, count)).astype(np.uint8)
        digits = np.arange(count)[:, None] % 10
        url, name, _ = lists[half]
        savemat(root / name, {"X": images, "y": np.where(digits == 0, 10, digits).astype(np.uint8)})
        lists[half] = [url, name, md5(root / name)]
    monkeypatch.setattr(datasets.SVHN, "split_list", lists)


def write_published(name: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files of `dataset=NAME`."""
    if name == "svhn":
        write_svhn(root, monkeypatch)
    else:
        write_cifar(root, {"cifar10": datasets.CIFAR10, "cifar100": datasets.CIFAR100}[name], monkeypatch)
