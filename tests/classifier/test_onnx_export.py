"""An exported graph computes what torch computes, for every encoder, and says what a program on a device must know."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from sofed_flwr.classifier import onnx_comparison, onnx_export
from sofed_flwr.classifier.model import Classifier
from sofed_flwr.classifier.onnx_comparison import interleaved, parity
from sofed_flwr.classifier.onnx_export import Material, export_onnx, generated
from sofed_flwr.classifier.onnx_file import serialised
from sofed_flwr.classifier.onnx_graph import onnx_graph
from sofed_flwr.classifier.onnx_int8 import quantised
from sofed_flwr.classifier.onnx_model import OnnxClassifier, OnnxModel
from sofed_flwr.config.compose import compose
from sofed_flwr.core.errors import ConfigError
from sofed_flwr.encoder import FrozenEncoder
from tests.support.federation import conf_names
from tests.support.models import classifier_of, encoder_of

SIZE = (16, 16)
LARGE = [name for name in conf_names("encoder") if name != "resnet8"]
IMAGES = torch.from_numpy(generated(SIZE))


@pytest.fixture(scope="module")
def classifier() -> Classifier:
    return classifier_of(encoder_of(), accuracy=0.5)


@pytest.fixture(scope="module")
def graph(classifier: Classifier) -> onnx.ModelProto:
    return onnx_graph(classifier, "NHWC", SIZE)


def opened(graph: onnx.ModelProto) -> OnnxModel:
    return OnnxModel(serialised(graph), "a graph", threads=1)


@cache
def narrow(component: str) -> tuple[FrozenEncoder, OnnxModel]:
    """Some encoders differ in width alone."""
    encoder = encoder_of(json.loads(component), size=16)
    return encoder, opened(onnx_graph(encoder, "NCHW", SIZE))


@pytest.mark.parametrize("name", ["resnet8", *(pytest.param(name, marks=pytest.mark.soak) for name in LARGE)])
def test_every_encoder_computes_the_same_in_onnx(name: str) -> None:
    """Batches of one and seven, too; a narrow network has the same operators as a wide one."""
    component = compose([f"encoder={name}"]).encoder
    encoder, exported = narrow(json.dumps(component | ({"width": 4} if "width" in component else {})))
    expected = encoder.features(IMAGES)
    scale = float(expected.abs().max())
    for count in (1, 7):
        assert exported.rows(IMAGES[:count]) / scale == pytest.approx(expected[:count] / scale, abs=1e-5)
    assert parity(encoder, exported, IMAGES).startswith("largest difference ")


def test_both_layouts_give_the_same_probabilities(classifier: Classifier, graph: onnx.ModelProto) -> None:
    other = onnx_graph(classifier, "NCHW", SIZE)
    rows = [opened(one).rows(IMAGES) for one in (graph, other)]
    assert torch.equal(*rows)
    assert "the same class for 100 of 100" in parity(classifier, opened(graph), IMAGES)
    assert [str(_shape(one.graph.input[0])) for one in (graph, other)] == [
        "['batch', 16, 16, 3]",
        "['batch', 3, 16, 16]",
    ]


def _shape(value: onnx.ValueInfoProto) -> list[int | str]:
    return [size.dim_param or size.dim_value for size in value.type.tensor_type.shape.dim]


def test_equal_models_are_equal_bytes_without_a_path_of_this_machine(
    classifier: Classifier, graph: onnx.ModelProto
) -> None:
    content = graph.SerializeToString(deterministic=True)
    assert onnx_graph(classifier, "NHWC", SIZE).SerializeToString(deterministic=True) == content
    assert b".py" not in content
    assert str(Path.cwd()).encode() not in content


DEVICE = """
import json, sys
import numpy as np, onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1])
about = session.get_modelmeta().custom_metadata_map
height, width = json.loads(about["image_size"])
(images,), (output,) = session.get_inputs(), session.get_outputs()
pixels = np.load(sys.argv[2])
assert pixels.shape[1:] == (height, width, 3)
rows = session.run(None, {"images": pixels})[0]
best = [json.loads(about["classes"])[number] for number in rows.argmax(axis=1)]
print(json.dumps([images.type, output.name, json.loads(about["provenance"]), best, rows.tolist()]))
assert not {"torch", "sofed_flwr", "onnx"} & sys.modules.keys()
"""


def test_a_device_needs_onnxruntime_and_numpy_only(
    classifier: Classifier, graph: onnx.ModelProto, tmp_path: Path
) -> None:
    model, pixels = tmp_path / "model.onnx", tmp_path / "pixels.npy"
    model.write_bytes(serialised(graph).content)
    np.save(pixels, IMAGES[:5].permute(0, 2, 3, 1).numpy())
    command = [sys.executable, "-I", "-c", DEVICE, str(model), str(pixels)]
    answer = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert answer[:2] == ["tensor(uint8)", "probabilities"]
    assert answer[2]["method"] == "sofed"
    assert answer[2]["classifier"] == {"accuracy": 0.5}
    assert answer[3] == classifier.predict(IMAGES[:5])
    assert np.array(answer[4]) == pytest.approx(classifier.probabilities(IMAGES[:5]).numpy(), abs=1e-5)


def test_int8_has_integers_for_weights_and_mostly_the_same_opinion(
    classifier: Classifier, graph: onnx.ModelProto
) -> None:
    small = quantised(graph, IMAGES.numpy())
    assert quantised(graph, IMAGES.numpy()).SerializeToString() == small.SerializeToString()
    weights = [tensor for tensor in small.graph.initializer if len(tensor.dims) == 4]
    assert {tensor.data_type for tensor in weights} == {onnx.TensorProto.INT8}
    exported = opened(small)
    assert exported.metadata.precision == "int8"
    rows, expected = exported.rows(IMAGES), classifier.probabilities(IMAGES)
    assert float((rows.argmax(dim=1) == expected.argmax(dim=1)).float().mean()) >= 0.9
    assert float((rows - expected).abs().max()) > 1e-5  # or nothing was quantised


def test_what_computes_something_else_is_not_written(
    classifier: Classifier, graph: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exporter that forgets something is found out by the command itself."""
    monkeypatch.setattr(onnx_export, "onnx_graph", lambda *_: graph)
    other = classifier_of(encoder_of(seed=1))
    torch.nn.init.normal_(other.head.weight)
    with pytest.raises(ConfigError, match=r"computes something else than torch: largest difference .*nothing was"):
        export_onnx(other, tmp_path / "model.onnx", "NHWC", None, int8=False, step=lambda _: None)
    assert list(tmp_path.iterdir()) == []


class Constant(OnnxModel):
    """A graph whose features are all the same."""

    def __init__(self, value: float) -> None:
        self.value = value

    def rows(self, images: torch.Tensor) -> torch.Tensor:
        return torch.full((len(images), 2), self.value)


def test_features_are_compared_by_their_own_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of an untrained MobileNet are of 1e-8."""
    monkeypatch.setattr(onnx_comparison, "torch_rows", lambda _, images: torch.full((len(images), 2), 1e-8))
    parity(encoder_of(), Constant(1.00001e-8), IMAGES)
    with pytest.raises(ConfigError, match=r"largest difference 1\.0e-02 of the largest feature"):
        parity(encoder_of(), Constant(1.01e-8), IMAGES)


def test_an_export_tells_accuracy_likeness_and_speed_of_what_it_wrote(
    classifier: Classifier, graph: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Targets are the classes that torch names, but for the first image: 99 %."""
    monkeypatch.setattr(onnx_export, "onnx_graph", lambda *_: graph)
    targets = classifier.probabilities(IMAGES).argmax(dim=1)
    targets[0] = (targets[0] + 1) % 3
    material = Material(IMAGES.numpy(), IMAGES.numpy(), targets)
    out = tmp_path / "new" / "model.onnx"
    remarks, table = export_onnx(classifier, out, "NHWC", material, int8=True, step=lambda _: None)
    assert remarks[0].startswith("parity with torch on 100 given images: largest difference ")
    assert re.match(r"int8 against fp32: accuracy [+-]\d\.\d\d points; \d+\.\d\d times as fast at 1 and", remarks[1])
    rows = {row[0]: row for row in table[1:]}
    assert rows["torch"][1:3] == ["99.00", "100.00"]
    assert rows["ONNX fp32"][1:3] == ["99.00", "100.00"]
    written = OnnxClassifier(out)
    agreed = float(
        (written.probabilities(IMAGES).argmax(dim=1) == classifier.probabilities(IMAGES).argmax(dim=1)).sum()
    )
    assert rows["ONNX int8"][2] == f"{agreed:.2f}"
    assert written.metadata.precision == "int8"


@pytest.mark.parametrize("name", ["model", "model.pt", "."])
def test_a_name_that_predict_would_not_know_is_refused_at_once(
    name: str, classifier: Classifier, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"expected a file whose name ends with \.onnx"):
        export_onnx(classifier, tmp_path / name, "NHWC", None, int8=False, step=lambda _: None)


def test_speeds_are_medians_of_interleaved_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that each run moves: a takes 1, b takes 3, and once 100."""
    clock, order = [0.0], []

    def run(name: str, *seconds: float) -> Callable[[], None]:
        left = iter(seconds)

        def once() -> None:
            order.append(name)
            clock[0] += next(left)

        return once

    monkeypatch.setattr(onnx_comparison, "thread_time", lambda: clock[0])
    monkeypatch.setattr(onnx_comparison, "MOST", 5)
    runs = {"a": run("a", 50, 1, 1, 1, 1, 1), "b": run("b", 50, 3, 100, 3, 3, 3)}
    assert interleaved(runs) == {"a": 1, "b": 3}
    assert "".join(order) == "ab" * 6
