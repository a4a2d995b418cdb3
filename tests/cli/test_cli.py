"""What a command costs before it does anything: each imports what it needs, and no more."""

import subprocess
import sys
from pathlib import Path

import pytest

from sofed_flwr.cli.main import app
from tests.support.federation import ROOT

HEAVY = ("torch", "flwr", "hydra", "omegaconf", "grpc", "matplotlib", "numpy")
COMMANDS = [command.name or command.callback.__name__ for command in app.registered_commands if command.callback]
LOADED = """
import os, sys
from sofed_flwr.cli.main import main
os.execv = lambda *_: sys.exit(0)
try:
    main()
finally:
    print("loaded:", *sorted({name.partition(".")[0] for name in sys.modules}))
"""


def loaded(*arguments: str) -> set[str]:
    """The packages in a process that ran this command."""
    command = [sys.executable, "-c", LOADED, *arguments]
    root = ROOT
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    packages = set(done.stdout.rpartition("loaded:")[2].split())
    assert "typer" in packages
    return packages


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS)], ids=lambda words: " ".join(words) or "sofed")
def test_help_is_shown_without_loading_what_trains(command: list[str]) -> None:
    assert not loaded(*command, "--help") & set(HEAVY)


def test_collect_never_loads_what_trains(tmp_path: Path) -> None:
    """Up to the moment at which it becomes the collector, which `test_collect.py` looks into."""
    assert not loaded("collect", str(tmp_path), "--command", "true") & set(HEAVY)
