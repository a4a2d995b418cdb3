"""What a model says of files: answers by hand, and files that cost no more than their own."""

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from sofed_flwr.classifier import predictions
from sofed_flwr.classifier.predictions import Prediction, as_csv, as_json, as_rows, find_files, predict_files
from sofed_flwr.core.errors import ConfigError
from sofed_flwr.encoder import LARGEST_IMAGE
from tests.support.frames import BAD


class Reddish:
    """Says `red` as probably as a picture is red, `blue` otherwise, and always has no idea of a third class."""

    classes = ("none", "blue", "red")
    image_size = (4, 4)

    def __init__(self) -> None:
        self.batches: list[int] = []

    def probabilities(self, images: Tensor) -> Tensor:
        self.batches.append(len(images))
        red = images[:, 0].float().mean(dim=(1, 2)) / 255
        return torch.stack([torch.zeros_like(red), 1 - red, red], dim=1)


def save(path: Path, red: float) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((8, 12, 3), round(red * 255), np.uint8)).save(path, "PNG")
    return path


def unwatched(items: Sequence[Path], what: str) -> Sequence[Path]:
    return items


def predict(files: Sequence[Path], top: int = 2, threshold: float = 0.0) -> tuple[list[Prediction], list[str]]:
    failures: list[str] = []
    return predict_files(Reddish(), files, top, threshold, failures, unwatched), failures


def test_the_most_probable_classes_come_first_and_doubt_is_named(tmp_path: Path) -> None:
    files = [save(tmp_path / "red.png", 0.8), save(tmp_path / "blue.png", 0.2), save(tmp_path / "both.png", 0.6)]
    found, failures = predict(files, threshold=0.7)
    assert failures == []
    assert [prediction.answer for prediction in found] == ["red", "blue", "unsure"]
    assert [name for name, _ in found[0].top] == ["red", "blue"]
    assert [value for _, value in found[1].top] == pytest.approx([0.8, 0.2])
    assert [prediction.answer for prediction in predict(files)[0]] == ["red", "blue", "red"]
    assert len(predict(files, top=99)[0][0].top) == 3


def test_unreadable_files_cost_their_own_answers_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten pictures between all kinds of broken ones, in batches of three pictures of 4 x 4 pixels."""
    monkeypatch.setattr(predictions, "BATCH_PIXELS", 3 * 16 + 5)
    good = [save(tmp_path / f"{number}.png", number / 10) for number in range(10)]
    bad = [tmp_path / f"bad{number}{extension}" for number, (extension, _) in enumerate(BAD.values())]
    for path, (_, content) in zip(bad, BAD.values(), strict=True):
        path.write_bytes(content(0))
    missing = tmp_path / "missing.png"
    model, failures = Reddish(), list[str]()
    found = predict_files(model, [*bad[:5], *good, missing, *bad[5:], tmp_path], 1, 0.0, failures, unwatched)
    assert [prediction.file for prediction in found] == list(map(str, good))
    assert [prediction.answer for prediction in found] == ["blue"] * 5 + [found[5].answer] + ["red"] * 4
    assert model.batches == [3, 3, 3, 1]
    assert len(failures) == len(bad) + 2
    assert all(any(path.name in failure for failure in failures) for path in [*bad, missing, tmp_path])


def test_a_folder_is_searched_in_order_and_links_to_folders_are_named(tmp_path: Path) -> None:
    for name in ("b.png", "a/2.png", "a/deep/1.png", "a/.hidden.png"):
        save(tmp_path / "photos" / name, 0)
    (tmp_path / "photos" / "notes.txt").touch()
    (tmp_path / "photos" / "link").symlink_to(tmp_path / "photos" / "a")
    for name in ("deep/3.heic", ".4.heic"):
        (tmp_path / "photos" / "a" / name).touch()
    (tmp_path / "photos" / "folder.heic").mkdir()
    for name in ("empty", "phone"):
        (tmp_path / name).mkdir()
    (tmp_path / "phone" / "5.AVIF").touch()
    failures: list[str] = []
    found = find_files([tmp_path / "photos", *(tmp_path / name for name in ("notes.txt", "empty", "phone"))], failures)
    names = ["photos/b.png", "photos/a/2.png", "photos/a/deep/1.png", "notes.txt"]
    assert [str(path.relative_to(tmp_path)) for path in found] == names
    assert failures == [
        f"{tmp_path}/photos/link: a link to a folder, which is not followed",
        f"{tmp_path}/photos/a/deep/3.heic: HEIC is not read; save it as JPEG or PNG",
        f"{tmp_path}/empty: a folder without images",
        f"{tmp_path}/phone/5.AVIF: AVIF is not read; save it as JPEG or PNG",
    ]


def test_a_model_that_cannot_answer_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = save(tmp_path / "a.png", 0)
    assert predictions.BATCH_PIXELS >= LARGEST_IMAGE**2
    with monkeypatch.context() as unknown:
        unknown.setattr(Reddish, "image_size", None)
        with pytest.raises(ConfigError, match="does not say the size"):
            predict([file])
    answers = torch.tensor([[0.0, 0.5, 0.5], [0.0, torch.nan, 1.0]])
    monkeypatch.setattr(Reddish, "probabilities", lambda self, images: answers)
    with pytest.raises(ConfigError, match=r"the model's answer for .*b\.png is not a number"):
        predict([file, save(tmp_path / "b.png", 0)])


def test_no_name_commands_a_terminal_or_breaks_a_row() -> None:
    odd = 'a,"b"\n\x1b[2J\u202e\udc80.png'
    prediction = Prediction(odd, "unsure", [("=x\x1b", 0.25), ("é", 0.125)])
    line = as_json(prediction)
    assert line.isascii()
    assert json.loads(line) == {
        "file": odd,
        "answer": "unsure",
        "top": [{"class": "=x\x1b", "probability": 0.25}, {"class": "é", "probability": 0.125}],
    }
    header, row = csv.reader(io.StringIO(as_csv([prediction])))
    assert header == ["file", "answer", "class_1", "probability_1", "class_2", "probability_2"]
    assert row == ['a,"b"\\n\\x1b[2J\\u202e\\udc80.png', "unsure", "=x\\x1b", "0.250000", "é", "0.125000"]
    assert as_rows([prediction])[1] == [row[0], "unsure", "=x\\x1b 0.25, é 0.12"]
