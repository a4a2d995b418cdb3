"""What an ONNX graph of ours can be, and a stranger's must be, before it runs.

A graph is a program. So it has standard operators only, no branches, no loops, and no data in other files, which a
runtime would fetch from wherever the file says; and every value has a known size, since a few bytes can ask for more
memory than a machine has.
"""

import math

from sofed_flwr.core.errors import ConfigError

try:
    import onnx
except ImportError as error:
    raise ConfigError("ONNX files need onnx and onnxruntime; pip install 'sofed-flwr[export]'") from error

Graph = onnx.ModelProto
INPUT, PROBABILITIES, FEATURES = "images", "probabilities", "features"
BATCH = "batch"
"""The one size that is open; onnx has other names for sizes it cannot tell."""
LARGEST_IMAGE_MEMORY = 2**28
"""Numbers that one image may need on its way; ResNet-18 with stem cifar needs 70 million at 224 x 224."""


def parsed(content: bytes) -> Graph:
    """What the bytes describe; a `ConfigError` if that is no plain graph."""
    try:
        model: Graph = Graph.FromString(content)
        _refuse_foreign_parts(model)
        onnx.checker.check_model(model)
    except ConfigError:
        raise
    except Exception as error:  # protobuf's own, and whatever onnx makes of a graph that is none
        raise ConfigError(f"it cannot be read: {str(error)[:100]}") from error
    return model


def _refuse_foreign_parts(model: Graph) -> None:
    """Standard operators in one sequence, and all data in this file."""
    domains = {part.domain for part in (*model.graph.node, *model.opset_import)} - {"", "ai.onnx"}
    if domains:
        raise ConfigError(f"it needs operators of {min(domains)[:50]!r}; expected ONNX's own")
    attributes = [attribute for node in model.graph.node for attribute in node.attribute]
    if model.functions or any(attribute.HasField("g") or attribute.graphs for attribute in attributes):
        raise ConfigError("it has functions, branches or loops; expected a plain graph")
    sparse = any(attribute.HasField("sparse_tensor") or attribute.sparse_tensors for attribute in attributes)
    tensors = [*model.graph.initializer, *(tensor for one in attributes for tensor in (one.t, *one.tensors))]
    elsewhere = any(tensor.data_location == onnx.TensorProto.EXTERNAL for tensor in tensors)
    if sparse or model.graph.sparse_initializer or elsewhere:
        raise ConfigError("its weights are sparse or in another file; expected one file")


def refuse_other_ports(graph: onnx.GraphProto, shape: list[int], classes: int) -> None:
    """One input and one output, of our names, types and shapes; without classes the output is features."""
    output = PROBABILITIES if classes else FEATURES
    ports = {port.name: port.type.tensor_type for port in (*graph.input, *graph.output)}
    if list(ports) != [INPUT, output] or len(graph.input) != 1:
        raise ConfigError(f"its input and output are {str(list(ports))[:100]}, expected {[INPUT, output]}")
    images, rows = (_sizes(ports[name]) for name in (INPUT, output))
    if ports[INPUT].elem_type != onnx.TensorProto.UINT8 or images != [BATCH, *shape]:
        raise ConfigError(f"its {INPUT} are of another type or size than its metadata says")
    expected = [BATCH, classes] if classes else [BATCH, *rows[1:2]]
    if ports[output].elem_type != onnx.TensorProto.FLOAT or rows != expected:
        raise ConfigError(f"its {output} are of another type or number than its metadata says")


def numbers_per_image(model: Graph) -> int:
    """The sizes of all values that nodes compute; what the file itself says of them does not count."""
    del model.graph.value_info[:]
    try:
        graph = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True).graph
    except Exception as error:  # onnx's own
        raise ConfigError(f"its values have no sizes: {str(error)[:100]}") from error
    values = {value.name: _sizes(value.type.tensor_type) for value in (*graph.value_info, *graph.output)}
    numbers = 0
    for name in (name for node in graph.node for name in node.output if name):
        sizes = values.get(name, [""])
        open_sizes = [size for size in sizes if isinstance(size, str)]
        if open_sizes not in ([], [BATCH]):
            raise ConfigError(f"the size of {name[:50]!r} depends on more than the number of images")
        numbers += math.prod(size for size in sizes if isinstance(size, int))
    if numbers > LARGEST_IMAGE_MEMORY:
        raise ConfigError(f"an image becomes {numbers} numbers, expected at most {LARGEST_IMAGE_MEMORY}")
    return numbers


def _sizes(kind: onnx.TypeProto.Tensor) -> list[int | str]:
    """Numbers, and a name for a size that is open, which may be empty."""
    if not kind.HasField("shape"):
        return [""]
    return [size.dim_value if size.HasField("dim_value") else size.dim_param for size in kind.shape.dim]
