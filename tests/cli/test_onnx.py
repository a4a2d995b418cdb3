"""`sofed export --format onnx` as it is typed, and `sofed predict` with what it wrote."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import Result
from PIL import Image
from typer.testing import CliRunner

from sofed_flwr.classifier.model_directory import load_classifier, write_model
from sofed_flwr.cli.main import app
from sofed_flwr.datasets.shapes import CLASS_NAMES
from tests.support.federation import ROOT
from tests.support.frames import fill, picture
from tests.support.models import classifier_of, encoder_of

SHAPES = [word for key in ("dataset=shapes", "dataset.train=60", "dataset.test=40") for word in ("--calibrate", key)]


def sofed(*words: str | Path) -> Result:
    return CliRunner().invoke(app, list(map(str, words)))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A classifier of shapes, which it has never seen."""
    write_model(tmp_path / "model", classifier_of(encoder_of(size=32), CLASS_NAMES))
    return tmp_path / "model"


def printed_program(page: str, directory: Path) -> str:
    """What the program of a page prints there, which must do without this project and torch."""
    programs = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)
    (program,) = (program for program in programs if "onnxruntime" in program)
    alone = 'import sys\nassert not {"torch", "sofed_flwr", "onnx"} & sys.modules.keys()\n'
    command = [sys.executable, "-I", "-c", program + alone]
    return subprocess.run(command, cwd=directory, check=True, capture_output=True, text=True).stdout.strip()


def test_a_classifier_becomes_a_file_that_answers_the_same(tmp_path: Path, model: Path) -> None:
    fill(tmp_path / "photos", 1, 2, 3)
    done = sofed("export", model, "--format", "onnx", "--out", tmp_path / "model.onnx", *SHAPES)
    assert (done.exit_code, done.stderr) == (0, ""), done.output
    assert "parity with torch on 40 given and 60 generated images: largest difference " in done.stdout
    assert "accuracy (%)" in done.stdout
    assert "images that the model was fitted on count, too" in done.stdout
    assert done.stdout.endswith(f"{tmp_path / 'model.onnx'}\n")
    answers = []
    for one in (model, tmp_path / "model.onnx"):
        done = sofed("predict", one, tmp_path / "photos", "--json", "--top", "1")
        assert done.exit_code == 0, done.output
        answers.append([json.loads(line)["answer"] for line in done.stdout.splitlines()])
    assert answers[0] == answers[1]
    assert len(answers[0]) == 3
    (tmp_path / "photos" / "1.jpg").rename(tmp_path / "holiday.jpg")
    assert printed_program("models.md", tmp_path) == answers[0][0]


def test_the_program_of_the_tutorial_turns_a_phones_photo_upright(tmp_path: Path, model: Path) -> None:
    on_its_side = Image.Exif()
    on_its_side[0x0112] = 6
    picture(1, (48, 40)).save(tmp_path / "my_photo.jpg", exif=on_its_side, quality=95)
    sofed("export", model, "--format", "onnx", "--out", tmp_path / "model.onnx")
    done = sofed("predict", tmp_path / "model.onnx", tmp_path / "my_photo.jpg", "--json")
    answer = json.loads(done.stdout)["top"][0]
    picture(1, (48, 40)).save(tmp_path / "lying.jpg", quality=95)
    (lying,) = load_classifier(model).probabilities(tmp_path / "lying.jpg")
    told = f"onnxruntime: {answer['class']} {answer['probability']:.2f}"
    assert printed_program("tutorial.md", tmp_path) == told != f"onnxruntime: {answer['class']} {lying.max():.2f}"


def test_what_cannot_be_exported_is_one_sentence(tmp_path: Path, model: Path) -> None:
    to_file = ["--format", "onnx", "--out", tmp_path / "new.onnx"]
    fill(tmp_path / "photos", 1)
    for words, told in (
        ([*to_file, "--int8"], "--int8 needs images such as the model will see"),
        ([*to_file, "--layout", "CHWN"], "--layout CHWN: expected NHWC or NCHW"),
        ([*to_file, "--calibrate", tmp_path / "none"], "is not a folder"),
        ([*to_file, "--calibrate", tmp_path / "photos"], "has no test images"),
        (["--format", "onnx", "--out", tmp_path / "new"], "expected a file whose name ends with .onnx"),
        (["--out", tmp_path / "new", "--int8"], "only with --format onnx"),
    ):
        done = sofed("export", model, *words)
        assert done.exit_code == 2, done.output
        assert told in done.stderr
        assert done.stderr.count("\n") == 1
    write_model(tmp_path / "small", classifier_of(encoder_of(size=16)))
    done = sofed("export", tmp_path / "small", *to_file, *SHAPES)
    assert "--calibrate: images of 32 x 32 pixels, expected 16 x 16 as in training" in done.stderr
    assert not list(tmp_path.glob("new*"))


@pytest.mark.parametrize(
    ("library", "command"),
    [
        ("onnx", "export"),
        ("onnxruntime", "export"),
        ("onnxscript", "export"),
        ("onnx", "predict"),
        ("onnxruntime", "predict"),
    ],
)
def test_without_the_extra_its_name_is_told(
    library: str, command: str, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("sofed_flwr.classifier.onnx_")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)
    more = [model, "--format", "onnx", "--out", "new.onnx"] if command == "export" else ["a.onnx", "b.jpg"]
    done = sofed(command, *more)
    assert done.exit_code == 2
    assert "pip install 'sofed-flwr[export]'" in done.stderr
    assert done.stderr.count("\n") == 1
