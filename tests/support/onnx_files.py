"""Small ONNX files, ours and strangers'."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from sofed_flwr.classifier.onnx_file import BLANK, with_digest

Node = onnx.NodeProto
WEIGHT = numpy_helper.from_array(np.linspace(-1, 1, 96, dtype=np.float32).reshape(48, 2), "weight")
NODES = [
    helper.make_node("Cast", ["images"], ["float"], to=TensorProto.FLOAT),
    helper.make_node("Flatten", ["float"], ["flat"]),
    helper.make_node("MatMul", ["flat", "weight"], ["rows"]),
    helper.make_node("Softmax", ["rows"], ["probabilities"]),
]
"""Images of 4 x 4 pixels in two classes."""
METADATA = {
    "classes": '["ant", "bee"]',
    "layout": '"NCHW"',
    "image_size": "[4, 4]",
    "precision": '"fp32"',
    "version": '"0.2.0"',
}


def stranger(
    more: Sequence[Node] = (),
    weights: Sequence[onnx.TensorProto] = (WEIGHT,),
    metadata: Mapping[str, str] = METADATA,
    batch: Any = "batch",
    kind: int = TensorProto.UINT8,
    domain: str = "",
) -> bytes:
    """A file that is right but for what is given; the digest is right, too: its writer knows how."""
    graph = helper.make_graph(
        [*NODES, *more],
        "graph",
        [helper.make_tensor_value_info("images", kind, [batch, 3, 4, 4])],
        [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, [batch, 2])],
        weights,
    )
    opsets = [helper.make_opsetid("", 18), *([helper.make_opsetid(domain, 1)] if domain else [])]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    if not metadata:
        return bytes(model.SerializeToString())
    helper.set_model_props(model, {**metadata, "digest": f'"{BLANK}"'})
    return with_digest(model.SerializeToString())


def numbers(name: str, *values: int, shape: Sequence[int] | None = None) -> onnx.TensorProto:
    array = np.array(values, np.int64)
    return numpy_helper.from_array(array if shape is None else array.reshape(shape), name)
