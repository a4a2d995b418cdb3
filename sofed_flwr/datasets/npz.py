"""Any dataset in one .npz file with MedMNIST's keys."""

from pathlib import Path

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray
from pydantic.dataclasses import dataclass

from sofed_flwr.contracts import LabeledImages, Labels, Split


@dataclass(frozen=True)
class Npz:
    """`train_images`, `train_labels`, `test_images`, `test_labels`; images uint8, (n, H, W, 3) or gray (n, H, W).

    With `train_groups` (n,) the stream is ordered and dealt by these, CIFAR-100's superclasses for example.
    """

    path: str

    def fingerprint(self) -> str:
        """Path, size and time of last change."""
        status = self._file().stat()
        return f"npz:{self._file().resolve()}:{status.st_size}:{status.st_mtime_ns}"

    def load(self) -> Split:
        """Read both halves; what is missing or misshapen is named."""
        with np.load(self._file(), allow_pickle=False) as arrays:
            return Split(self._half(arrays, "train"), self._half(arrays, "test"))

    def _file(self) -> Path:
        file = Path(self.path).expanduser()
        if not file.is_file():
            raise ValueError(f"path={self.path!r} is not a file; dataset=npz needs dataset.path=FILE.npz")
        return file

    def _half(self, arrays: NpzFile, half: str) -> LabeledImages:
        names = f"{half}_images", f"{half}_labels"
        if missing := [name for name in names if name not in arrays]:
            raise ValueError(f"path={self.path!r} has no {missing[0]!r}; it holds {', '.join(sorted(arrays))}")
        images, labels = (arrays[name] for name in names)
        if images.ndim == 3:
            images = np.repeat(images[..., None], 3, axis=-1)
        if images.dtype != np.uint8 or images.ndim != 4 or images.shape[-1] != 3 or len(images) != labels.size:
            raise ValueError(
                f"path={self.path!r}: {names[0]} is {images.dtype} {images.shape} with {labels.size} labels, "
                "expected uint8 (n, H, W, 3) or (n, H, W) with n labels"
            )
        channels_first = np.ascontiguousarray(images.transpose(0, 3, 1, 2))
        return LabeledImages(channels_first, _flat(labels), self._groups(arrays, half, labels.size))

    def _groups(self, arrays: NpzFile, half: str, count: int) -> Labels | None:
        name = f"{half}_groups"
        if name not in arrays:
            return None
        groups = arrays[name]
        if groups.size != count:
            raise ValueError(f"path={self.path!r}: {name} holds {groups.size} values for {count} images")
        return _flat(groups)


def _flat(labels: NDArray[np.integer]) -> Labels:
    """MedMNIST's labels are (n, 1)."""
    return labels.reshape(-1).astype(np.int64)
