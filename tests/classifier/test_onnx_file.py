"""An ONNX file may come from anybody: what is wrong with it is one sentence, and nothing of it runs before."""

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from sofed_flwr.classifier.onnx_model import OnnxClassifier
from sofed_flwr.core.errors import ConfigError, DamagedFileError
from tests.support.onnx_files import METADATA, WEIGHT, numbers, stranger


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "model.onnx"


def refusal(place: Path, content: bytes) -> str:
    place.write_bytes(content)
    with pytest.raises((ConfigError, DamagedFileError)) as refused:
        OnnxClassifier(place)
    assert str(refused.value).startswith(str(place))
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 500
    assert str(refused.value).isprintable()
    return str(refused.value)


def test_a_right_file_is_opened(place: Path, pixels: torch.Tensor) -> None:
    place.write_bytes(stranger())
    model = OnnxClassifier(place)
    assert (model.classes, model.image_size) == (("ant", "bee"), (4, 4))
    images = pixels[:, :, :4, :4]
    weight = torch.from_numpy(numpy_helper.to_array(WEIGHT).copy())
    assert torch.allclose(model.probabilities(images), (images.flatten(1).float() @ weight).softmax(dim=1), atol=1e-5)
    with pytest.raises(DamagedFileError, match=r"model\.onnx cannot be run by onnxruntime \(.*invalid dimensions"):
        model.probabilities(pixels)


def test_a_file_that_was_cut_off_or_has_a_wrong_byte_is_refused(place: Path) -> None:
    content = stranger()
    for length in range(0, len(content), 17):
        refusal(place, content[:length])
    for place_of in (content.index(WEIGHT.raw_data) + 8, content.index(b"Flatten") + 9, content.index(b"bee")):
        damaged = bytearray(content)
        damaged[place_of] ^= 1
        refusal(place, bytes(damaged))
    assert "its checksum does not match" in refusal(place, content.replace(b"bee", b"fly"))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("classes", "5", "classes=5: input should be a valid list"),
        ("classes", '["ant"]', "its probabilities are of another type or number"),
        ("classes", '["ant", "ant"]', "a name is there twice"),
        ("classes", '["ant", ""]', "classes.1="),
        ("classes", "[" * 10**5, "invalid JSON"),
        ("classes", '"' + "a" * 2**22 + '"', "more than 4194304 characters"),
        ("classes", "[]", "its input and output are ['images', 'probabilities'], expected ['images', 'features']"),
        ("layout", '"NHWC"', "its images are of another type or size"),
        ("layout", '"CHWN"', "layout=CHWN: input should be 'NHWC' or 'NCHW'"),
        ("image_size", "[4]", "image_size=[4]"),
        ("image_size", "[4, true]", "image_size.1=True"),
        ("image_size", "[4, 1000000]", "image_size.1=1000000"),
        ("precision", '"int4"', "precision=int4"),
        ("version", "7", "version=7"),
        ("version", '"\x1b[2J"', 'version=" [2J": invalid JSON'),
    ],
)
def test_metadata_is_read_by_type_and_range(key: str, value: str, message: str, place: Path) -> None:
    assert message in refusal(place, stranger(metadata=METADATA | {key: value}))


def test_a_file_of_another_program_or_version_is_refused(place: Path) -> None:
    assert "in its metadata classes is missing" in refusal(place, stranger(metadata={}))
    later = stranger(metadata=METADATA | {"version": '"9.9"', "layout": '"tiles"'})
    assert "; it was written by version 9.9, this is " in refusal(place, later)
    assert "its images are of another type or size" in refusal(place, stranger(kind=TensorProto.INT8))
    assert "its images are of another type or size" in refusal(place, stranger(batch=5))


def test_weights_are_never_fetched_from_another_file(place: Path) -> None:
    secret = place.with_name("secret")
    secret.write_bytes(WEIGHT.raw_data)
    model = onnx.ModelProto.FromString(stranger())
    onnx.external_data_helper.set_external_data(model.graph.initializer[0], location="secret")
    model.graph.initializer[0].ClearField("raw_data")
    assert "in another file" in refusal(place, model.SerializeToString())


def test_what_is_no_plain_graph_of_standard_operators_is_refused(place: Path) -> None:
    custom = helper.make_node("Run", ["flat"], ["more"], domain="com.stranger")
    assert "it needs operators of 'com.stranger'" in refusal(place, stranger([custom], domain="com.stranger"))
    nothing = helper.make_graph([], "body", [], [])
    branch = helper.make_node("If", ["flat"], ["more"], then_branch=nothing, else_branch=nothing)
    assert "branches or loops" in refusal(place, stranger([branch]))


LINE = range(2**15)
KERNEL = numpy_helper.from_array(np.zeros((1, 3, 1, 1), np.float32), "kernel")
BOMBS = {
    "constant": ([helper.make_node("ConstantOfShape", ["a"], ["more"])], [numbers("a", 2**35)]),
    "range": (
        [helper.make_node("Range", ["a", "b", "c"], ["more"])],
        [numbers("a", 0, shape=()), numbers("b", 2**40, shape=()), numbers("c", 1, shape=())],
    ),
    "outer sum": (
        [helper.make_node("Add", ["a", "b"], ["more"])],
        [numbers("a", *LINE, shape=(1, -1)), numbers("b", *LINE, shape=(-1, 1))],
    ),
    "padding": ([helper.make_node("Conv", ["float", "kernel"], ["more"], pads=[10**6] * 4)], [KERNEL]),
    "computed": (
        [
            helper.make_node("Shape", ["images"], ["size"]),
            helper.make_node("Mul", ["size", "a"], ["large"]),
            helper.make_node("Expand", ["b", "large"], ["more"]),
        ],
        [numbers("a", 10**6), numbers("b", 0, shape=(1, 1, 1, 1))],
    ),
}


@pytest.mark.parametrize(("nodes", "weights"), BOMBS.values(), ids=BOMBS)
def test_a_graph_that_asks_for_more_memory_than_an_image_needs_is_refused(
    nodes: list[onnx.NodeProto], weights: list[onnx.TensorProto], place: Path
) -> None:
    message = refusal(place, stranger(nodes, [WEIGHT, *weights]))
    assert "numbers, expected at most" in message or "depends on more than the number of images" in message


def test_what_is_no_plain_file_is_refused(place: Path) -> None:
    with pytest.raises(DamagedFileError, match="is missing"):
        OnnxClassifier(place)
    place.mkdir()
    with pytest.raises(DamagedFileError, match="not a plain file"):
        OnnxClassifier(place)
    assert "cannot be read" in refusal(place.with_suffix(".bin"), b"\xff" * 100)
