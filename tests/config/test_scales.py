"""A scale shrinks a run on any dataset and with any encoder, the user's own included."""

from pathlib import Path

import numpy as np
import pytest

from sofed_flwr.build import build_dataset, build_method, check
from sofed_flwr.config.compose import compose
from tests.datasets.test_datasets import DATASETS, save_npz
from tests.datasets.test_folder import save_image
from tests.support.federation import conf_names
from tests.support.published import write_published


def images_of(name: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A small dataset of each kind: 300 training images of one's own, two classes."""
    match name:
        case "shapes":
            return []
        case "npz":
            arrays = {"train_images": np.zeros((300, 16, 16, 3), np.uint8), "train_labels": np.arange(300) % 2}
            return [f"dataset.path={save_npz(path / 'data.npz', **arrays).path}"]
        case "folder":
            for number in range(100):
                save_image(path / str(number % 2) / f"{number}.png", number)
            return [f"dataset.path={path}"]
        case _:
            write_published(name, path / "root", monkeypatch)
            return [f"dataset.root={path / 'root'}", "clients=1", "buffer=2"]


@pytest.mark.parametrize("scale", ["smoke", "small"])
@pytest.mark.parametrize("name", DATASETS)
def test_a_scale_takes_every_dataset(name: str, scale: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    more = images_of(name, tmp_path, monkeypatch)
    tiny = ["encoder.width=2", "buffer=4", "stream.stc=4"] if scale == "small" else []
    config = compose([f"scale={scale}", f"dataset={name}", *tiny, *more, f"out={tmp_path / 'run'}"])
    check(config)
    if scale == "smoke":
        assert len(build_dataset(config).train) <= 240


@pytest.mark.parametrize("scale", conf_names("scale"))
@pytest.mark.parametrize("name", conf_names("encoder"))
def test_a_scale_takes_every_encoder(name: str, scale: str) -> None:
    build_method(compose([f"scale={scale}", f"encoder={name}"]))


def test_the_smoke_scale_generates_no_more_than_it_uses() -> None:
    config = compose(["scale=smoke"])
    assert (config.dataset["train"], config.dataset["test"], config.subset.train) == (240, 100, None)
    assert compose(["scale=smoke", "dataset.train=500"]).dataset["train"] == 500
    assert compose(["scale=smoke", "encoder.width=6"]).encoder["width"] == 6
