"""Tiny data, a tiny configuration, and a federation without Flower."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.supercore.task_identity import TaskIdentity

from sofed_flwr.assembly import build_device, build_server
from sofed_flwr.config import compose
from sofed_flwr.contracts import LabeledImages, State
from sofed_flwr.run_config import RunConfig
from sofed_flwr.server import Server

SMOKE = ["scale=smoke"]


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
    return lambda *overrides, out="run": compose([*SMOKE, *overrides, f"out={tmp_path / out}"])


@pytest.fixture
def pixels() -> torch.Tensor:
    return torch.randint(256, (12, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def labelled(counts: list[int], size: int = 8) -> LabeledImages:
    """`counts[c]` images of class c, whose pixels all equal c."""
    labels = np.repeat(np.arange(len(counts)), counts)
    images = np.broadcast_to(labels[:, None, None, None], (len(labels), 3, size, size)).astype(np.uint8)
    return LabeledImages(images, labels.astype(np.int64))


def rounds(server: Server, config: RunConfig, upto: int) -> None:
    """A federation in one process: what Flower does, without Flower."""
    server.close_round(0)
    for number in range(max(server.committed, 0) + 1, upto + 1):
        devices = [build_device(config, server.run, k) for k in range(config.clients)]
        server.aggregate(number, [device.train_round(number, server.shared) for device in devices], {})
        server.close_round(number)


def federate(config: RunConfig, upto: int | None = None) -> Server:
    server = build_server(config)
    rounds(server, config, upto or config.rounds)
    return server


def same(first: State, second: State) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def conf_names(group: str) -> list[str]:
    """Every yaml of a group: a new component is tested by existing."""
    folder = Path(__file__).parent.parent / "conf" / group
    return sorted(path.stem for path in folder.glob("*.yaml"))
