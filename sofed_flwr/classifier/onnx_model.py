"""An ONNX file of ours at work, in onnxruntime."""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sofed_flwr.classifier.onnx_file import OnnxFile, read_onnx
from sofed_flwr.classifier.onnx_limits import INPUT
from sofed_flwr.core.errors import ConfigError, DamagedFileError
from sofed_flwr.core.records import Pixels
from sofed_flwr.core.redaction import one_line

try:
    import onnxruntime
except ImportError as error:
    raise ConfigError("ONNX files need onnxruntime; pip install 'sofed-flwr[export]'") from error

NUMBERS_AT_ONCE = 2**27
"""Values of a batch on its way through the graph: half a gigabyte."""
LARGEST_BATCH = 256
SILENT = 4
"""But for what ends the process: errors come as exceptions, too."""


class OnnxModel:
    """Pixels in, rows out; `threads` 0 leaves their number to onnxruntime."""

    def __init__(self, file: OnnxFile, name: str, threads: int = 0) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = SILENT
        try:
            self._session = onnxruntime.InferenceSession(file.content, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime's own classes
            raise DamagedFileError(one_line(f"{name} cannot be run by onnxruntime ({str(error)[:200]})")) from error
        self._batch = min(LARGEST_BATCH, max(1, NUMBERS_AT_ONCE // file.numbers))
        self._name = name
        self.metadata = file.metadata
        self.image_size = self.metadata.image_size[0], self.metadata.image_size[1]

    def rows(self, images: Tensor) -> Tensor:
        """Pixels uint8 (n, 3, H, W) -> (n, classes) or (n, d)."""
        parts = [self.run(self.laid_out(part)) for part in torch.split(images, self._batch)]
        return torch.from_numpy(np.concatenate(parts))

    def laid_out(self, images: Tensor) -> Pixels:
        """As the graph expects them."""
        ordered = images.permute(0, 2, 3, 1) if self.metadata.layout == "NHWC" else images
        return ordered.contiguous().numpy()

    def run(self, images: Pixels) -> NDArray[np.float32]:
        """One batch, laid out."""
        try:
            rows: NDArray[np.float32] = self._session.run(None, {INPUT: images})[0]
        except Exception as error:  # onnxruntime's own classes
            raise DamagedFileError(
                one_line(f"{self._name} cannot be run by onnxruntime ({str(error)[:200]})")
            ) from error
        return rows


class OnnxClassifier(OnnxModel):
    """What `sofed export --format onnx` made of a classifier."""

    def __init__(self, path: str | Path) -> None:
        super().__init__(read_onnx(Path(path)), str(path))
        if not self.metadata.classes:
            raise ConfigError(f"{path} is an encoder without classes; export a classifier (sofed fit makes one)")
        self.classes = tuple(self.metadata.classes)
        self.probabilities = self.rows
