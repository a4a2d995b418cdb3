"""A graph whose convolutions compute with 8-bit integers, by onnxruntime's static quantisation.

The settings were chosen on CIFAR-10, with three ResNets of widths 8 and 16, by the share of 4,000 test images for which
int8 and fp32 name the same class (94.9 to 98.0 %), and by the time of a batch of 32 on one core with AVX-512 VNNI.

- Only convolutions and the additions between them: pooling and head in int8, too, cost 0.9 to 13.4 points and saved no
  time. The first convolution in float was not worth an exception: -0.3 to 0.8 points, 5 % more to 7 % less time.
- Weights int8 with a scale per channel: one per tensor cost 0.6 points. Activations uint8: int8 ones were as exact, and
  took 1.4 to 2.7 times as long. Weights of 7 bits (`reduce_range`), meant for x86 processors without VNNI, whose sums
  saturate, cost 0.8 points.
- Ranges from the smallest to the largest value seen: other ways were within 1.2 points, above and below, but for the
  99.9th percentile, which cost up to 3.1. 16 images were within 0.5 points of 1,024.
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
