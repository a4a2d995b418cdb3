"""An encoder file may come from anybody: nothing in it runs, and what is wrong with it is one sentence."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import nn

from sofed_flwr import load_classifier
from sofed_flwr.config.instantiate import build
from sofed_flwr.core.errors import ConfigError, DamagedFileError
from sofed_flwr.encoder import FrozenEncoder, _warn_of_another_size, load_encoder, save_encoder
from sofed_flwr.storage.generations import read_file, write_file
from tests.support.federation import compose_once

RESNET = {"_target_": "sofed_flwr.models.encoders.resnet", "blocks": [1, 1], "width": 4, "stem": "half"}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "encoder.safetensors"
    save_encoder(path, build(RESNET, "encoder"), RESNET, {"image_size": [32, 32]})
    return path


@pytest.fixture
def encoder(file: Path) -> FrozenEncoder:
    return load_encoder(file)


def changed(file: Path, **meta: Any) -> Path:
    """The file with other metadata, every digest in order: its writer knows how."""
    state, before = read_file(file)
    write_file(file, state, before | meta)
    return file


def refusal(file: Path) -> str:
    with pytest.raises(DamagedFileError) as refused:
        load_encoder(file)
    assert str(refused.value).startswith(str(file))
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 500
    return str(refused.value)


def test_no_command_of_an_encoder_file_runs(file: Path, tmp_path: Path) -> None:
    refusal(changed(file, architecture={"_target_": "os.system", "command": f"touch {tmp_path / 'ran'}"}))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "architecture",
    [
        None,
        5,
        "sofed_flwr.models.encoders.resnet",
        [],
        {},
        {"_target_": "sofed_flwr.policies.fifo.FIFO"},
        {"_target_": "sofed_flwr.models.heads.mlp", "widths": [3, 4, 5]},
        RESNET | {"width": 10**9},
        RESNET | {"blocks": [10**9]},
        RESNET | {"blocks": [1] * 64},
        RESNET | {"blocks": [40] * 5, "width": 4096},
        RESNET | {"width": 4096},
        RESNET | {"_target_": "sofed_flwr.models.encoders.ResNet", "blocks": [10**9], "width": 10**9},
        {"_target_": "sofed_flwr.models.mobilenet.MobileNetV3Small", "stem": "none"},
        RESNET | {"width": {"_target_": "os.system"}},
        RESNET | {"extra": 5},
        {"_target_": "sofed_flwr.models.mobilenet.mobilenet_v3_small", "stem": "cifar"},
    ],
)
def test_an_architecture_that_is_none_or_another_ones_is_refused(architecture: object, file: Path) -> None:
    """Without the memory that a few bytes of it describe: 200 blocks of up to 65,536 channels."""
    refusal(changed(file, architecture=architecture))


def test_a_state_of_a_run_is_no_encoder(file: Path) -> None:
    write_file(file, {"x": torch.zeros(1)}, {"run": "abc"})
    assert "it has no architecture; expected the encoder.safetensors of a run" in refusal(file)


def test_weights_of_another_shape_name_or_type_are_named(file: Path) -> None:
    state, meta = read_file(file)
    write_file(file, state | {"conv1.weight": torch.zeros(8, 3, 3, 3)}, meta)
    assert "conv1.weight has shape (8, 3, 3, 3), expected (4, 3, 3, 3)" in refusal(file)
    write_file(file, state | {"bn1.running_var": state["bn1.running_var"].double()}, meta)
    assert "bn1.running_var has dtype torch.float64, expected torch.float32" in refusal(file)
    write_file(file, state | {"fc.weight": torch.zeros(1)}, meta)
    assert "tensor names differ from those of its architecture, first of 1: fc.weight" in refusal(file)
    write_file(file, state | {"bn1.weight": torch.full((4,), torch.nan)}, meta)
    assert "bn1.weight is not finite" in refusal(file)
    del state["bn1.bias"]
    write_file(file, state, meta | {"version": "\x1b[2J"})
    assert "written by version \\x1b[2J" in refusal(file)
    write_file(file, state, meta)
    assert "tensor names differ from those of its architecture, first of 1: bn1.bias" in refusal(file)


@pytest.mark.parametrize("size", [5, "32", [32], [32, 0], [32, -1], [32, 10**9], [3.5, 4], [True, None], {"h": 1}])
def test_an_image_size_that_is_none_is_refused(size: object, file: Path) -> None:
    assert "image_size=" in refusal(changed(file, image_size=size))


def test_a_file_says_the_size_of_its_images_and_an_older_one_does_not(file: Path) -> None:
    assert load_encoder(file).image_size == (32, 32)
    state, meta = read_file(file)
    write_file(file, state, {"architecture": meta["architecture"]})
    assert load_encoder(file).image_size is None


def test_what_is_no_such_file_is_refused(tmp_path: Path) -> None:
    plain = tmp_path / "plain.safetensors"
    for content in (b"", b"\xff" * 100, json.dumps({"a": 1}).encode()):
        plain.write_bytes(content)
        refusal(plain)


def test_every_kind_of_images_gives_the_same_features(encoder: FrozenEncoder, pixels: torch.Tensor) -> None:
    """A folder of any size, too: 12 images in batches of 5 are those of one batch."""
    features = encoder.features(pixels)
    assert features.shape == (12, 8)
    assert torch.equal(encoder.features(pixels.permute(0, 2, 3, 1).numpy()), features)
    with pytest.MonkeyPatch.context() as small:
        small.setattr("sofed_flwr.encoder.BATCH", 5)
        assert torch.allclose(encoder.features(pixels), features, atol=1e-6)
    with pytest.raises(ValueError, match=r"images are float32 \(2, 3, 8, 8\)"):
        encoder.features(torch.rand(2, 3, 8, 8))


def test_images_follow_the_encoder_to_its_device(encoder: FrozenEncoder, pixels: torch.Tensor) -> None:
    """`meta` stands in for CUDA: it computes nothing, and takes no tensor that stayed behind."""
    features = encoder.to("meta").features(pixels)
    assert (features.device.type, features.shape) == ("meta", (len(pixels), encoder.feature_dim))


def test_arrays_of_another_size_are_warned_of_once(encoder: FrozenEncoder) -> None:
    _warn_of_another_size.cache_clear()
    small, right = (torch.zeros(2, 3, size, 32, dtype=torch.uint8) for size in (16, 32))
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for images in (right, small, small.numpy(), small):
            encoder.features(images)
        encoder.features(Image.new("RGB", (16, 16)))
    assert [str(warning.message) for warning in warned] == [
        "the arrays have 16 x 32 pixels, and the encoder was trained at 32 x 32: the answers may be wrong; "
        "scale them, or give paths or pictures of PIL, which are scaled"
    ]
    assert warned[0].filename == __file__


def test_one_array_too_few_or_many_has_a_remedy(encoder: FrozenEncoder, pixels: torch.Tensor) -> None:
    for one in (pixels[0], pixels[0].permute(1, 2, 0).numpy()):
        with pytest.raises(ValueError, match=r"which is one image .*; add it: images\[None\]"):
            encoder.features(one)
    for several in (list(pixels), tuple(pixels.numpy())):
        with pytest.raises(TypeError, match=r"a list of arrays; make one of them: np\.stack\(images\)"):
            encoder.features(several)


def test_what_people_have_beside_an_encoder_is_named(tmp_path: Path) -> None:
    for name in ("model.onnx", "photo.jpg"):
        (tmp_path / name).touch()
    for name, told in (
        ("model.onnx", "model.onnx is an ONNX file, which sofed predict and onnxruntime run; expected the directory"),
        ("photo.jpg", "photo.jpg is an image; expected the directory of a model or of a run, or encoder.safetensors"),
        (".", "is neither a model nor a run that ended: no config.json, no encoder.safetensors"),
    ):
        for load in (load_encoder, load_classifier):
            with pytest.raises(ConfigError, match=told):
                load(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        load_encoder(tmp_path / "none.onnx")


def test_every_encoder_survives_its_file(tmp_path: Path) -> None:
    for name in ("resnet8", "mobilenet_v3_small"):
        component = compose_once(f"encoder={name}").encoder
        backbone: nn.Module = build(component, "encoder").eval()
        save_encoder(tmp_path / name, backbone, component, {})
        loaded = load_encoder(tmp_path / name).backbone.state_dict()
        assert all(torch.equal(tensor, loaded[key]) for key, tensor in backbone.state_dict().items())
