"""Fixtures of all tests: one thread, a cache of their own, a tiny configuration."""

import gc
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from flwr.supercore.task_identity import TaskIdentity

from sofed_flwr.config.schema import RunConfig
from tests.support.federation import SMOKE, composed


def pytest_collection_finish() -> None:
    """What was imported is there to stay: no garbage collection needs to look through it again."""
    gc.freeze()


@pytest.fixture(autouse=True)
def _one_thread_and_own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.setenv("SOFED_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture
def _inside_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower makes messages only where a task is running."""
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


@pytest.fixture
def smoke(tmp_path: Path) -> Callable[..., RunConfig]:
    """The smoke configuration with more overrides, its run directory below tmp_path."""
    return lambda *overrides, out="run": composed(*SMOKE, *overrides, out=tmp_path / out)


@pytest.fixture
def pixels() -> torch.Tensor:
    return torch.randint(256, (12, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
