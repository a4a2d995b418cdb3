"""What nobody foresaw ends in a traceback of lines, without the values of variables: those are weights, keys, paths."""

import subprocess
import sys

import pytest

from sofed_flwr.cli import exit_codes
from sofed_flwr.core.errors import DamagedFileError, RunFailed
from tests.support.federation import ROOT

UNFORESEEN = """
import typer
from sofed_flwr.cli import main as cli

@cli.app.command()
def fail() -> None:
    secret = "-".join(["private", "key"])
    raise KeyError("unforeseen")

cli.main()
"""


def test_a_traceback_shows_no_variables() -> None:
    root = ROOT
    done = subprocess.run([sys.executable, "-c", UNFORESEEN, "fail"], cwd=root, capture_output=True, text=True)
    assert done.returncode == 1
    assert "KeyError: 'unforeseen'" in done.stderr
    assert "private-key" not in done.stderr + done.stdout


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (DamagedFileError("x\x1b[2J\x07y"), 2),
        (IsADirectoryError(21, "Is a directory", "x"), 2),
        (NotADirectoryError(20, "Not a directory", "x"), 2),
        (OSError(40, "Too many levels of symbolic links", "x"), 2),
        (RunFailed("x\x1b]0;y\x07\nz"), 1),
    ],
)
def test_a_foreseen_end_is_printable_and_has_its_code(
    error: Exception, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(exit_codes.typer.Exit) as end, exit_codes.exit_codes():
        raise error
    assert end.value.exit_code == code
    shown = capsys.readouterr().err
    assert shown.startswith("sofed: ")
    assert shown.replace("\n", "").isprintable()
