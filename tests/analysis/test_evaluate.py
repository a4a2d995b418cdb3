"""`sofed evaluate` evaluates an encoder on the images and at the size of its training, or says that it does not."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sofed_flwr.analysis.evaluate import evaluate
from sofed_flwr.build import build_server
from sofed_flwr.cli import main as cli
from sofed_flwr.config.compose import compose
from sofed_flwr.config.schema import RunConfig
from sofed_flwr.core.errors import ConfigError
from sofed_flwr.encoder import load_encoder
from sofed_flwr.server.training_images import trained_on
from sofed_flwr.storage.generations import read_file, write_file
from tests.datasets.test_folder import save_image
from tests.support.federation import federate

Smoke = Callable[..., RunConfig]
QUICK = ["evaluation.linear.label_seeds=1", "evaluation.linear.max_iterations=5"]


def finished(config: RunConfig) -> Path:
    """The encoder file of a run, in its run directory."""
    server = federate(config, upto=1)
    server.finish(config.encoder, config.facts, trained_on(config, server.suite, server.split))
    return server.directory.encoder


def alone(file: Path) -> Path:
    """The file without the run around it."""
    (file.parent / "config.yaml").unlink()
    return file


def rewritten(file: Path, **meta: Any) -> Path:
    state, before = read_file(file)
    write_file(file, state, {key: value for key, value in (before | meta).items() if value is not None})
    return file


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Two classes of twelve images of 48 pixels."""
    for label in ("a", "b"):
        for number in range(12):
            save_image(tmp_path / "images" / label / f"{number}.png", 20 * number, size=(48, 48))
    return tmp_path / "images"


def of_folder(images: Path, size: int) -> list[str]:
    return ["buffer=8", "stream.stc=2", "dataset=folder", f"dataset.path={images}", f"dataset.size={size}"]


def test_the_data_of_training_is_what_an_encoder_is_evaluated_on(smoke: Smoke) -> None:
    """By the run directory, and by the file alone."""
    file = finished(smoke("dataset.seed=7"))
    data, values, remarks = evaluate(file, QUICK)
    assert data == "dataset=shapes (train=240, test=100, seed=7, 32 x 32 pixels)"
    assert remarks == []
    assert (data, values, remarks) == evaluate(alone(file), QUICK)
    assert evaluate(file, [*QUICK, "dataset.seed=8"]).data == data.replace("7", "8"), "the rest stays"
    assert evaluate(file, [*QUICK, "dataset=shapes", "dataset.train=50"]).data.startswith("dataset=shapes (train=50, t")


def test_images_are_as_large_as_in_training_unless_the_user_says_so(smoke: Smoke, images: Path) -> None:
    file = finished(smoke(*of_folder(images, 16)))
    assert load_encoder(file).image_size == (16, 16)
    assert "16 x 16" in evaluate(file, QUICK).data
    assert evaluate(file.parent, QUICK) == evaluate(file, QUICK)
    data, _, remarks = evaluate(file, [*QUICK, "dataset=folder", f"dataset.path={images}"])
    assert ("16 x 16" in data, remarks) == (True, [])
    data, _, remarks = evaluate(file, [*QUICK, "dataset.size=32"])
    assert "32 x 32" in data
    assert remarks == ["trained at 16 x 16 pixels, evaluated at 32 x 32: another size gives other accuracies"]


def test_a_file_tells_no_path(smoke: Smoke, images: Path) -> None:
    file = finished(smoke(*of_folder(images, 16)))
    assert str(images).encode() not in file.read_bytes()
    with pytest.raises(ConfigError, match=r"dataset.path is missing; give it as dataset.path=VALUE"):
        evaluate(alone(file), QUICK)
    assert "16 x 16" in evaluate(file, [*QUICK, f"dataset.path={images}"]).data


def test_an_older_file_is_evaluated_and_what_it_does_not_say_is_said(smoke: Smoke) -> None:
    file = alone(rewritten(finished(smoke()), data=None, image_size=None))
    data, _, remarks = evaluate(file, [*QUICK, "subset.train=100", "subset.test=50"])
    assert data.startswith("dataset=shapes")
    assert remarks == [
        "the file does not say on which data the encoder was trained",
        "the file does not say the image size of training; these images have 32 x 32 pixels",
    ]


def test_a_configuration_of_another_run_is_passed_over(smoke: Smoke) -> None:
    file = finished(smoke("dataset.seed=7"))
    (file.parent / "config.yaml").write_text(smoke("dataset.seed=9", "encoder.width=8").to_yaml())
    assert "seed=7" in evaluate(file, QUICK).data
    (file.parent / "config.yaml").write_text("a: [")
    assert "seed=7" in evaluate(file, QUICK).data


SHAPES = {"dataset": "shapes", "settings": {"train": 240, "test": 100, "seed": 0}, "subset": {}}


STRANGE: list[object] = [
    5,
    {},
    {"dataset": "shapes"},
    SHAPES | {"dataset": "../../evil"},
    SHAPES | {"dataset": "shapes hydra.searchpath=[pkg://evil]"},
    SHAPES | {"dataset": ["shapes"]},
    SHAPES | {"dataset": "nowhere"},
    SHAPES | {"settings": {"train": 10**12}},
    SHAPES | {"settings": {"train": float("nan")}},
    SHAPES | {"settings": {"train": "${oc.env:HOME}"}},
    SHAPES | {"settings": {"train": [1]}},
    SHAPES | {"settings": {"_target_": "os.system", "command": "ls"}},
    SHAPES | {"settings": {"x=1 hydra.searchpath": 1}},
    SHAPES | {"settings": {"path": "/etc/passwd"}},
    SHAPES | {"subset": {"train": -1}},
    SHAPES | {"subset": {"train": {"a": 1}}},
]


def test_what_a_stranger_says_of_his_data_is_plain_and_small(smoke: Smoke) -> None:
    file = alone(finished(smoke()))
    for data in STRANGE:
        rewritten(file, data=data)
        with pytest.raises(ConfigError) as refused:
            print(f"accepted: {data} as {evaluate(file, QUICK)}")
        assert str(refused.value).isprintable()
    assert evaluate(file, [*QUICK, "scale=smoke"]).values["knn"] > 0, "unless the user names another"


def test_nothing_is_downloaded_because_a_file_says_so(smoke: Smoke, tmp_path: Path) -> None:
    """By the file and by a run directory, which even names the place."""
    settings = {"root": None, "download": True}
    file = rewritten(finished(smoke()), data={"dataset": "cifar10", "settings": settings, "subset": {}})
    foreign = compose(["dataset=cifar10", f"dataset.root={tmp_path / 'root'}"])
    beside = smoke().model_copy(update={"dataset": foreign.dataset, "choices": foreign.choices})
    (file.parent / "config.yaml").write_text(beside.to_yaml())
    for evaluated in (file, alone(file)):
        with pytest.raises(ConfigError, match=r"dataset\.download is false"):
            evaluate(evaluated, QUICK)
    assert not (tmp_path / "root").exists()


def test_a_fleet_without_images_on_the_server_says_the_size_of_its_devices(smoke: Smoke) -> None:
    server = build_server(config := smoke("evaluation=none", "stream.image_size=64"))
    assert trained_on(config, server.suite, server.split)["image_size"] == [64, 64]


def test_the_command_says_what_it_evaluated_and_brackets_in_a_path_are_no_markup(
    smoke: Smoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = finished(smoke()).parent.rename(tmp_path / "a[red]b[x]c") / "encoder.safetensors"
    monkeypatch.setenv("COLUMNS", "300")
    done = CliRunner().invoke(cli.app, ["evaluate", str(file), *QUICK])
    assert done.exit_code == 0, done.output
    assert f"{file} on dataset=shapes (train=240, test=100, seed=0, 32 x 32 pixels)" in done.output
    assert "knn" in done.output
