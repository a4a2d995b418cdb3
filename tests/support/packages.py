"""A user's own package with a policy in it, and what a stranger might try to reach through it."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

NAME = "own_package"
FIRST = '''
from dataclasses import dataclass
from os import system

import torch

from sofed_flwr.core.records import Selection
from sofed_flwr.policies.base import ModelFree


@dataclass(frozen=True)
class First(ModelFree):
    """Keep the first ones."""

    def select(self, pool, capacity, scorer, generator):
        return Selection(torch.arange(capacity), pool.scores)


def first() -> First:
    return First()


def whatever():
    return First()


class Last(ModelFree):
    pass
'''


def write_package(folder: Path) -> Path:
    """The directory to be imported from."""
    (folder / NAME).mkdir(parents=True)
    (folder / NAME / "__init__.py").write_text(f"from {NAME}.first import First\n")
    (folder / NAME / "first.py").write_text(FIRST)
    return folder


@contextmanager
def importable(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Its name, while it can be imported in this process and nothing is trusted yet."""
    monkeypatch.setenv("SOFED_TRUST", "")
    monkeypatch.syspath_prepend(str(write_package(folder)))
    yield NAME
    for name in [name for name in sys.modules if name.partition(".")[0] == NAME]:
        del sys.modules[name]
