"""A graph whose convolutions compute with 8-bit integers, by onnxruntime's static quantisation.

The settings were chosen on CIFAR-10, with ResNets of width 8 (trained), width 16 with stem half, and width 16 with
twice the blocks and stem cifar (both random). Shares are of 4,000 test images for which int8 and fp32 name the same
class, times those of a batch of 32 on one core with AVX-512 VNNI.

- Only convolutions and the additions between them. With pooling and head in int8, too, the shares fell from 98.0, 94.9
  and 96.7 % to 97.1, 81.5 and 94.2 %, and no time was saved. The first convolution in float made a difference of -0.3
  to 0.8 points, and of 5 % more to 7 % less time: not worth an exception.
- Weights int8 with a scale per channel: 97.7 and 96.7 % for 97.0 and 96.1 % with one per tensor (first and third
  network). Activations uint8: int8 ones were as exact, and took 1.4 to 2.7 times as long. Weights of 7 bits
  (`reduce_range`), meant for x86 processors without VNNI, whose sums saturate, cost 0.8 points (first network).
- Ranges from the smallest to the largest value seen. Percentiles (99.99, 99.999), entropy and moving averages came out
  within 1.2 points, above and below; the 99.9th percentile cost up to 3.1. 16 images were within 0.5 points of 1,024.
"""

import json
from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.quant_utils import add_pre_process_metadata

from sofed_flwr.classifier.onnx_graph import sealed
from sofed_flwr.classifier.onnx_limits import INPUT
from sofed_flwr.core.records import Pixels

QUANTISED = ["Add", "Conv", "Relu"]
IMAGES = 256
"""Used of those given."""
BATCH = 32


def quantised(graph: onnx.ModelProto, images: Pixels) -> onnx.ModelProto:
    """`images` (n, 3, H, W) should be such as the graph will see: their ranges are all that it can represent."""
    stated = {entry.key: json.loads(entry.value) for entry in graph.metadata_props}
    chosen = images[np.unique(np.linspace(0, len(images) - 1, IMAGES).astype(int))]
    prepared = deepcopy(graph)
    add_pre_process_metadata(prepared)  # torch's exporter has folded what can be folded
    with TemporaryDirectory() as folder:
        file = Path(folder) / "int8.onnx"
        quantize_static(
            prepared,
            file,
            _Batches(chosen.transpose(0, 2, 3, 1) if stated["layout"] == "NHWC" else chosen),
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=QUANTISED,
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
        )
        return sealed(onnx.load(file), stated | {"precision": "int8"})


class _Batches(CalibrationDataReader):  # type: ignore[misc]
    """What onnxruntime asks for images, until there are none."""

    def __init__(self, images: Pixels) -> None:
        self._parts = (np.ascontiguousarray(images[start : start + BATCH]) for start in range(0, len(images), BATCH))

    def get_next(self) -> dict[str, Pixels] | None:
        """The next batch."""
        part = next(self._parts, None)
        return None if part is None else {INPUT: part}
