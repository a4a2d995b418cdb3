"""`sofed export --format onnx`: a model becomes one file, which is compared with the model before it is written."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sofed_flwr.classifier.model_directory import Model
from sofed_flwr.classifier.onnx_comparison import Measured, compare, parity, table
from sofed_flwr.classifier.onnx_file import LAYOUTS, Layout, serialised
from sofed_flwr.classifier.onnx_graph import onnx_graph
from sofed_flwr.classifier.onnx_int8 import quantised
from sofed_flwr.classifier.onnx_model import OnnxModel
from sofed_flwr.core.errors import ConfigError
from sofed_flwr.core.records import Pixels
from sofed_flwr.core.rng import numpy_generator
from sofed_flwr.datasets.shapes import render_shapes
from sofed_flwr.storage.atomic_files import write_atomically

SUFFIX = ".onnx"
FP32, INT8 = "ONNX fp32", "ONNX int8"
PARITY_IMAGES = 100


@dataclass(frozen=True)
class Material:
    """Images (n, 3, H, W): some to calibrate int8 on, others to compare on, with the numbers of their classes if known.

    `remarks` is what the user must know of them.
    """

    calibration: Pixels
    compared: Pixels
    targets: Tensor | None
    remarks: tuple[str, ...] = ()


def export_onnx(
    model: Model, out: Path, layout: Layout, material: Material | None, int8: bool, step: Callable[[str], None]
) -> tuple[list[str], list[list[str]]]:
    """Write `out`, or nothing; returns remarks and a table for the user. `step` is told what is being done."""
    if out.suffix != SUFFIX or out.is_dir():
        raise ConfigError(f"--out {out}: expected a file whose name ends with {SUFFIX}")
    if (size := model.image_size) is None:
        raise ConfigError("the model does not say the size of its images, which an ONNX graph must have")
    made = generated(size)
    given = material or Material(made, made, None)
    step("writing the ONNX graph")
    graph = onnx_graph(model, layout, size)
    files = {FP32: serialised(graph)}
    step("comparing it with torch")
    real = min(len(given.compared), PARITY_IMAGES) if material else 0
    few = torch.from_numpy(np.concatenate([given.compared[:real], made])[:PARITY_IMAGES])
    told = parity(model, OnnxModel(files[FP32], str(out)), few)
    kinds = {"given": real, "generated": len(few) - real}
    compared = " and ".join(f"{count} {kind}" for kind, count in kinds.items() if count)
    remarks = [*given.remarks, f"parity with torch on {compared} images: {told}"]
    if int8:
        step("calibrating int8")
        files[INT8] = serialised(quantised(graph, given.calibration))
    step(f"measuring on {len(given.compared)} images")
    ways = {name: OnnxModel(file, str(out), threads=1) for name, file in files.items()}
    measured = compare(model, ways, torch.from_numpy(given.compared), given.targets)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, files[INT8 if int8 else FP32].content)
    if int8:
        remarks.append(f"int8 against fp32: {_difference(measured[FP32], measured[INT8])}")
    return remarks, table(measured, {name: len(file.content) for name, file in files.items()})


def as_layout(name: str | None) -> Layout:
    """What a user calls a layout; a camera's pixels are NHWC."""
    for layout in LAYOUTS:
        if layout == (name or LAYOUTS[0]).upper():
            return layout
    raise ConfigError(f"--layout {name}: expected {' or '.join(LAYOUTS)}")


def generated(image_size: tuple[int, int]) -> Pixels:
    """Images of `dataset=shapes` at any size: as good as others to see whether two programs compute the same."""
    images = render_shapes(PARITY_IMAGES, numpy_generator(0, "images of an export")).images
    rows, columns = (np.arange(side) * own // side for side, own in zip(image_size, images.shape[2:], strict=True))
    return images[:, :, rows][:, :, :, columns]


def _difference(fp32: Measured, int8: Measured) -> str:
    faster = [f"{int8.speed[batch] / fp32.speed[batch]:.2f} times as fast at {batch}" for batch in fp32.speed]
    if fp32.accuracy is None or int8.accuracy is None:
        return " and ".join(faster) + " images at once"
    return f"accuracy {int8.accuracy - fp32.accuracy:+.2f} points; {' and '.join(faster)} images at once"
