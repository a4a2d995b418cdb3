"""`sofed export` and `sofed predict` as they are typed: what is printed where, and the exit code."""

import csv
import io
import json
from pathlib import Path

import pytest
import torch
from click.testing import Result
from typer.testing import CliRunner

from sofed_flwr import load_encoder
from sofed_flwr.classifier.model_directory import write_model
from sofed_flwr.cli.main import app
from sofed_flwr.encoder import save_encoder
from tests.support.frames import fill
from tests.support.models import SMALL, classifier_of, encoder_of


def sofed(*words: str | Path) -> Result:
    return CliRunner().invoke(app, list(map(str, words)))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A classifier, and four photos: two in a folder, one beside it, and one that is none."""
    write_model(tmp_path / "model", classifier_of(encoder_of()))
    fill(tmp_path / "photos", 1, 2)
    fill(tmp_path, 3, size=(300, 200))
    (tmp_path / "bad.jpg").write_bytes(b"text")
    return tmp_path / "model"


def test_the_encoder_of_a_run_becomes_a_model_directory(tmp_path: Path, pixels: torch.Tensor) -> None:
    encoder = encoder_of()
    save_encoder(tmp_path / "encoder.safetensors", encoder.backbone, SMALL, dict(encoder.facts))
    for source in (tmp_path, tmp_path / "encoder.safetensors", tmp_path / "model"):
        done = sofed("export", source, "--format", "dir", "--out", tmp_path / "model")
        assert done.exit_code == 0, done.output
        assert "model.safetensors, config.json, README.md" in done.stdout
        assert torch.equal(load_encoder(tmp_path / "model").features(pixels), encoder.features(pixels))
    assert "- rounds: 10" in (tmp_path / "model" / "README.md").read_text()


def test_what_cannot_be_exported_is_one_sentence(tmp_path: Path, model: Path) -> None:
    for words, told in (
        ([model, "--format", "pickle", "--out", tmp_path / "new"], "--format pickle: expected dir"),
        ([tmp_path / "photos", "--out", tmp_path / "new"], "encoder.safetensors"),
        ([tmp_path / "none", "--out", tmp_path / "new"], "No such file"),
        ([model, "--out", tmp_path / "photos"], "holds 1.jpg, which no model has"),
    ):
        done = sofed("export", *words)
        assert done.exit_code == 2
        assert told in done.stderr
        assert done.stderr.count("\n") == 1
    assert not (tmp_path / "new").exists()


def test_every_form_has_the_same_answers(tmp_path: Path, model: Path) -> None:
    words = ["predict", model, tmp_path / "photos", tmp_path / "3.jpg", "--top", "2"]
    table, lines, rows = sofed(*words), sofed(*words, "--json"), sofed(*words, "--csv")
    assert [done.exit_code for done in (table, lines, rows)] == [0, 0, 0]
    objects = [json.loads(line) for line in lines.stdout.splitlines()]
    files = [str(tmp_path / name) for name in ("photos/1.jpg", "photos/2.jpg", "3.jpg")]
    assert [found["file"] for found in objects] == files
    parsed = list(csv.DictReader(io.StringIO(rows.stdout)))
    assert [row["answer"] for row in parsed] == [found["answer"] for found in objects]
    for row, found in zip(parsed, objects, strict=True):
        assert row["class_1"] == found["answer"] == found["top"][0]["class"]
        assert float(row["probability_2"]) == pytest.approx(found["top"][1]["probability"], abs=1e-6)
    assert f"{objects[0]['answer']} {objects[0]['top'][0]['probability']:.2f}" in table.stdout
    assert {json.loads(line)["answer"] for line in sofed(*words, "--json", "--threshold", "1").stdout.splitlines()} == {
        "unsure"
    }


def test_the_exit_code_says_what_was_read(tmp_path: Path, model: Path) -> None:
    some = sofed("predict", model, tmp_path / "bad.jpg", tmp_path / "3.jpg", tmp_path / "none.jpg", "--json")
    assert some.exit_code == 1
    assert [json.loads(line)["file"] for line in some.stdout.splitlines()] == [str(tmp_path / "3.jpg")]
    assert [name in line for name, line in zip(("bad.jpg", "none.jpg"), some.stderr.splitlines(), strict=True)]
    none = sofed("predict", model, tmp_path / "bad.jpg")
    assert none.exit_code == 2
    assert none.stderr.startswith("sofed: none of the images can be read; ")
    assert (none.stdout, none.stderr.count("\n")) == ("", 1)
    (tmp_path / "photos" / "IMG_1.heic").touch()
    other = sofed("predict", model, tmp_path / "photos")
    told = f"sofed: {tmp_path}/photos/IMG_1.heic: HEIC is not read; save it as JPEG or PNG\n"
    assert (other.exit_code, other.stderr) == (1, told)


def test_wrong_words_are_one_sentence(tmp_path: Path, model: Path) -> None:
    write_model(tmp_path / "encoder", encoder_of())
    for words, told in (
        ([tmp_path / "encoder", tmp_path / "3.jpg"], "an encoder without classes; sofed fit makes a classifier of it"),
        ([tmp_path / "3.jpg", tmp_path / "3.jpg"], "3.jpg is an image; expected the directory of a model"),
        ([tmp_path / "photos", tmp_path / "3.jpg"], "photos is neither a model nor a run that ended"),
        ([model, tmp_path / "3.jpg", "--json", "--csv"], "--json and --csv: expected one of them"),
    ):
        done = sofed("predict", *words)
        assert done.exit_code == 2
        assert told in done.stderr
        assert done.stderr.count("\n") == 1
    for options in (["--top", "0"], ["--threshold", "2"], ["--threshold", "nan"]):
        assert sofed("predict", model, tmp_path / "3.jpg", *options).exit_code == 2
