"""A model directory may come from anybody: nothing in it runs, and what is wrong with it is one sentence."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from sofed_flwr import load_classifier, load_encoder
from sofed_flwr.classifier.model_directory import read_model, write_model
from sofed_flwr.core.errors import ConfigError, DamagedFileError
from sofed_flwr.storage import model_files
from sofed_flwr.storage.generations import read_file, write_file
from tests.support.models import classifier_of, encoder_of


@pytest.fixture
def model(tmp_path: Path) -> Path:
    write_model(tmp_path / "model", classifier_of(encoder_of()))
    return tmp_path / "model"


def refusal(directory: Path) -> str:
    with pytest.raises(DamagedFileError) as refused:
        read_model(directory)
    assert str(refused.value).startswith(str(directory))
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 500
    return str(refused.value)


def edit(model: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    config = json.loads((model / "config.json").read_text())
    change(config)
    (model / "config.json").write_text(json.dumps(config))
    return model


def test_no_command_of_a_model_directory_runs(model: Path, tmp_path: Path) -> None:
    command = {"_target_": "os.system", "command": f"touch {tmp_path / 'ran'}"}
    assert "_target_=os.system" in refusal(edit(model, lambda config: config["sofed"].update(architecture=command)))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "facts",
    [
        {"architecture": None},
        {"architecture": {"_target_": "sofed_flwr.models.encoders.resnet", "blocks": [40] * 5, "width": 4096}},
        {"image_size": [10**9, 10**9]},
        {"fine_tuned": True},
        {"fine_tuned": {"images": 80}},
        {"fine_tuned": {"images": "80", "classes": 2}},
        {"fine_tuned": {"images": 10**30, "classes": 2}},
        {"fine_tuned": {"images": 1, "classes": 2}},
        {"classes": "ant"},
        {"classes": ["ant", "bee", 5]},
        {"classes": ["ant", "bee", "bee"]},
        {"classes": ["ant", "bee", ""]},
        {"classes": ["ant", "bee", "x" * 10**6]},
        {"classes": ["ant", "bee"]},
        {"classes": {"ant": 0}},
        {"classifier": None},
        {"classifier": [1]},
    ],
    ids=str,
)
def test_facts_of_a_wrong_type_or_size_are_refused(model: Path, facts: dict[str, Any]) -> None:
    def change(config: dict[str, Any]) -> None:
        config["sofed"].update(facts)
        if isinstance(classes := facts.get("classes"), list):
            config.update(label_names=classes, num_classes=len(classes))

    refusal(edit(model, change))


def test_what_timm_is_told_must_be_what_we_say(model: Path) -> None:
    told = "num_classes and label_names are not those of its classes"
    assert told in refusal(edit(model, lambda config: config.update(label_names=["bee", "ant", "cat"])))
    assert told in refusal(edit(model, lambda config: config.update(num_classes=10**30)))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"{",
        b"[]",
        b"5",
        b"{}",
        b'{"sofed": 5}',
        b'{"sofed": {"a": NaN}}',
        b"[" * 100_000,
        b"9" * 9000,
    ],
    ids=lambda content: str(content[:30]),
)
def test_a_configuration_that_is_none_is_refused(model: Path, content: bytes) -> None:
    (model / "config.json").write_bytes(content)
    assert "is not a model of sofed, or a damaged one (config.json" in refusal(model)


def test_weights_that_disagree_are_named(model: Path) -> None:
    file = model / "model.safetensors"
    state, _ = read_file(file)
    for name, tensor, told in (
        ("fc.weight", torch.zeros(4, 8), "fc.weight has shape (4, 8), expected (3, 8)"),
        ("fc.bias", torch.zeros(1), "fc.bias has shape (1,), expected (3,)"),
        ("fc.more", torch.zeros(1), "tensor names differ from those of its architecture, first of 1: fc.more"),
        ("conv1.weight", torch.zeros(1), "conv1.weight has shape (1,), expected (4, 3, 3, 3)"),
        ("fc.bias", torch.full((3,), torch.nan), "fc.bias is not finite"),
    ):
        write_file(file, state | {name: tensor}, {})
        assert told in refusal(model)
    write_file(file, state | {"conv1.weight": torch.zeros(4, 3, 3, 3, dtype=torch.float8_e4m3fn)}, {})
    assert "conv1.weight has dtype torch.float8_e4m3fn, expected torch.float32" in refusal(model)
    write_file(file, {name: tensor for name, tensor in state.items() if not name.startswith("fc.")}, {})
    assert "tensor names differ from those of its architecture, first of 2: fc.bias" in refusal(model)
    write_model(model, encoder_of())
    write_file(file, state, {})
    assert "it has weights of a classifier (fc.) and no classes" in refusal(model)


def test_a_flipped_byte_of_the_weights_is_noticed(model: Path) -> None:
    file = model / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert "its checksum does not match" in refusal(model)
    file.write_bytes(content[:-100])
    refusal(model)


def _directory(path: Path) -> None:
    path.mkdir()


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
@pytest.mark.parametrize("trick", [_directory, _device, os.mkfifo])
def test_what_is_not_a_plain_file_is_never_read(model: Path, name: str, trick: Callable[[Path], None]) -> None:
    """Without waiting for a pipe that nobody writes to."""
    (model / name).unlink()
    assert f"{name} is missing" in refusal(model)
    trick(model / name)
    assert f"{name} is not a plain file" in refusal(model)


def test_a_file_larger_than_a_model_is_not_read(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.truncate(model / "config.json", 2**40)
    assert "config.json is not a plain file of at most 4194304 bytes" in refusal(model)


def test_a_link_to_a_plain_file_is_followed(model: Path, tmp_path: Path) -> None:
    """As the cache of the Hugging Face hub has it."""
    (model / "model.safetensors").rename(tmp_path / "blob")
    (model / "model.safetensors").symlink_to(tmp_path / "blob")
    assert load_classifier(model).classes == ("ant", "bee", "cat")


def test_an_encoder_is_no_classifier(tmp_path: Path) -> None:
    write_model(tmp_path / "encoder", encoder_of())
    with pytest.raises(ConfigError, match="an encoder without classes; sofed fit makes a classifier of it"):
        load_classifier(tmp_path / "encoder")


# writing


def test_a_model_replaces_an_empty_directory_and_another_model_and_nothing_else(model: Path, tmp_path: Path) -> None:
    for name in ("empty", "notes", "other"):
        (tmp_path / name).mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "notes" / "notes.txt").touch()
    (tmp_path / "other" / "config.json").write_text('{"model_type": "bert"}')
    write_model(tmp_path / "empty", encoder_of())
    write_model(model, encoder_of())
    assert not load_encoder(model).facts.keys() & {"classes", "classifier"}
    for name, told in (
        ("notes", "holds notes.txt, which no model has"),
        ("other", "is not empty and not a model of sofed"),
        ("file", "is a file"),
        ("loop", "is a file"),
    ):
        with pytest.raises(ConfigError, match=told):
            write_model(tmp_path / name, encoder_of())
    (model / "notes.txt").touch()
    with pytest.raises(ConfigError, match=r"holds notes\.txt"):
        write_model(model, encoder_of())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "file", "loop", "model", "notes", "other"]


@pytest.mark.parametrize("place", [0, 1, 2, 3, 4])
def test_a_full_disk_or_a_lost_right_leaves_the_old_model(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    """At each of three files and two moves; nothing is left beside it."""
    steps = iter(range(9))

    def failing(step: Callable[..., Any]) -> Callable[..., Any]:
        def attempt(*arguments: Any) -> Any:
            if next(steps) == place:
                raise OSError(28, "No space left on device")
            return step(*arguments)

        return attempt

    monkeypatch.setattr(model_files, "write_atomically", failing(model_files.write_atomically))
    with pytest.MonkeyPatch.context() as moves:
        moves.setattr(model_files, "_move", failing(model_files._move))
        with pytest.raises(OSError, match="No space left"):
            write_model(model, encoder_of())
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert load_classifier(model).classes == ("ant", "bee", "cat")


def test_facts_that_cannot_be_read_again_are_not_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written as JSON"):
        write_model(tmp_path / "model", encoder_of(loss=float("nan")))
    with pytest.raises(ConfigError, match="facts have 5000"):
        write_model(tmp_path / "model", encoder_of(text="x" * 5_000_000))
    assert not list(tmp_path.iterdir())
