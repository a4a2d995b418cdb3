"""The tutorial and the notebook, run as they are printed."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from sofed_flwr.datasets.shapes import CLASS_NAMES
from tests.support.federation import ROOT

QUICK = {"ARGS": "rounds=3"}
"""Three of the demo's eighteen rounds are enough for 14 points."""


def as_script(page: str) -> str:
    """What a reader types, block by block, in one terminal."""
    blocks = re.findall(r"^```(bash|python)\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    typed = [code if language == "bash" else f"python - <<'END'\n{code}END\n" for language, code in blocks]
    return "set -e\n" + "".join(typed)


def without_make() -> dict[str, str]:
    """`make test ARGS=...` hands its own ARGS down to every make below it."""
    return {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}


def clone_in(folder: Path) -> None:
    """As far as make looks; its environment is the present one, and taken for current."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        (folder / name).symlink_to(ROOT / name)
    (folder / ".venv").mkdir()
    for part in Path(sys.prefix).iterdir():
        (folder / ".venv" / part.name).symlink_to(part)
    ask = ["make", "--silent", "--eval", "ready: ; @echo $(READY)", "ready"]
    ready = subprocess.run(ask, cwd=folder, env=without_make(), capture_output=True, text=True, check=True)
    (folder / ready.stdout.strip()).touch()


@pytest.mark.flower
def test_the_tutorial_as_printed_teaches_an_encoder_and_ends_with_the_same_prediction_in_three_ways(
    tmp_path: Path,
) -> None:
    clone_in(tmp_path)
    script = as_script((ROOT / "docs" / "tutorial.md").read_text())
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=without_make() | QUICK, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    ways = {"sofed predict": r"my_photo\.jpg │ +(\w+)", "onnxruntime": r"onnxruntime: (\w+)", "Python": r"\['(\w+)'\]"}
    told = {way: re.findall(pattern, done.stdout) for way, pattern in ways.items()}
    (answer,) = told["Python"]
    assert answer in CLASS_NAMES
    assert told == {way: [answer] for way in ways}
    (summary,) = tmp_path.glob("outputs/*/*/summary.json")
    check_the_encoder_learned(json.loads(summary.read_text()))


def check_the_encoder_learned(summary: dict[str, Any]) -> None:
    untrained, trained = summary["untrained"]["linear"]["1.0"], summary["linear"]["1.0"]
    assert summary["rounds"] == 3
    assert untrained < 60
    assert trained - untrained >= 8
    assert summary["discard_ratio"] > 0.5


@pytest.mark.flower
def test_the_notebook_runs_and_ends_with_predictions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    notebook = nbformat.read(ROOT / "examples" / "notebook.ipynb", as_version=4)
    codes = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.outputs for cell in codes), "clear the outputs before committing"
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [output.data["text/plain"] for output in codes[-1].outputs if "data" in output]
    assert len(re.findall(rf"({'|'.join(CLASS_NAMES)})$", shown[0], re.MULTILINE)) == 10
