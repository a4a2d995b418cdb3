"""A model as an ONNX graph: pixels in, probabilities or features out, and in its metadata what a user must know.

Normalisation is inside, so that a program on a device hands over bytes as a camera or a decoder has them, and cannot do
it wrongly. torch's exporter writes the source lines of the network into every node, with the paths of this machine; all
of that is removed, which also makes equal models equal bytes.
"""

import json
import warnings
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from sofed_flwr.classifier.model import Classifier
from sofed_flwr.classifier.model_directory import Model
from sofed_flwr.classifier.onnx_file import BLANK, Layout
from sofed_flwr.classifier.onnx_limits import BATCH, FEATURES, INPUT, PROBABILITIES
from sofed_flwr.core.app_files import version
from sofed_flwr.core.errors import ConfigError
from sofed_flwr.views.pixels import standardised, unit_range

try:
    import onnx
    import onnxscript  # noqa: F401  (torch's exporter needs it)
except ImportError as error:
    raise ConfigError("ONNX export needs onnx and onnxscript; pip install 'sofed-flwr[export]'") from error

OPSET = 18


class _Graph(nn.Module):
    """In plain memory layout: of channels-last weights the exporter makes a Gather wherever a network pools."""

    def __init__(self, model: Model, layout: Layout) -> None:
        super().__init__()
        encoder = model.encoder if isinstance(model, Classifier) else model
        self.backbone = deepcopy(encoder.backbone).cpu().to(memory_format=torch.contiguous_format)
        self.head = deepcopy(model.head).cpu() if isinstance(model, Classifier) else None
        self.layout = layout

    def forward(self, images: Tensor) -> Tensor:
        colours_first = images.permute(0, 3, 1, 2).contiguous() if self.layout == "NHWC" else images
        features: Tensor = self.backbone(standardised(unit_range(colours_first)))
        return features if self.head is None else self.head(features).softmax(dim=1)


def onnx_graph(model: Model, layout: Layout, image_size: tuple[int, int]) -> onnx.ModelProto:
    """Any number of images of one size -> one row each; equal models give equal graphs."""
    shape = (2, *image_size, 3) if layout == "NHWC" else (2, 3, *image_size)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            _Graph(model, layout).eval(),
            (torch.zeros(shape, dtype=torch.uint8),),
            dynamo=True,
            opset_version=OPSET,
            dynamic_shapes=({0: torch.export.Dim(BATCH)},),
            input_names=[INPUT],
            output_names=[PROBABILITIES if isinstance(model, Classifier) else FEATURES],
            verbose=False,
        )
    assert program is not None
    graph: onnx.ModelProto = program.model_proto
    _remove_traces(graph)
    return sealed(graph, _stated(model, layout, image_size))


def sealed(graph: onnx.ModelProto, stated: Mapping[str, Any]) -> onnx.ModelProto:
    """With us as its producer, and metadata, of which each value is JSON and the last one the digest's place."""
    graph.producer_name, graph.producer_version = "sofed-flwr", version()
    texts = {name: json.dumps(value) for name, value in {**stated, "digest": BLANK}.items()}
    onnx.helper.set_model_props(graph, texts)
    return graph


def _stated(model: Model, layout: Layout, image_size: tuple[int, int]) -> dict[str, Any]:
    encoder = model.encoder if isinstance(model, Classifier) else model
    fitted = {"classifier": dict(model.facts)} if isinstance(model, Classifier) else {}
    return {
        "classes": list(model.classes) if isinstance(model, Classifier) else [],
        "layout": layout,
        "image_size": image_size,
        "precision": "fp32",
        "provenance": {**encoder.facts, **fitted},
        "version": version(),
    }


def _remove_traces(model: onnx.ModelProto) -> None:
    graph = model.graph
    del graph.metadata_props[:]
    for part in (*graph.node, *graph.input, *graph.output, *graph.value_info, *graph.initializer):
        del part.metadata_props[:]
        part.ClearField("doc_string")
