"""A federation in one process, without Flower, and what tests of many parts share."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import torch

from sofed_flwr.build import build_device, build_server
from sofed_flwr.config.compose import compose
from sofed_flwr.config.override_text import quoted
from sofed_flwr.config.schema import RunConfig
from sofed_flwr.core.records import LabeledImages, State
from sofed_flwr.server.rounds import Server
from tests.support.replies import aggregate

ROOT = Path(__file__).parents[2]
"""The clone."""
SMOKE = ["scale=smoke"]


@cache
def compose_once(*overrides: str) -> RunConfig:
    """What `compose` gives; Hydra takes a tenth of a second, as long as a smoke round."""
    return compose(overrides)


def composed(*overrides: str, out: Path) -> RunConfig:
    """What `compose` gives, with `out` filled in afterwards."""
    config = compose_once(*overrides)
    return config.model_copy(update={"out": str(out), "overrides": [*overrides, f"out={quoted(str(out))}"]}, deep=True)


def composed_run(overrides: Sequence[str]) -> RunConfig:
    """What `sofed reproduce` asks to simulate: the last override says where, and whether to resume."""
    *own, where = overrides
    key, _, place = where.partition("=")
    return composed(*own, out=Path(place.strip("'"))) if key == "out" else compose(overrides)


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
        aggregate(server, number, [device.train_round(number, server.shared) for device in devices], {})
        server.close_round(number)


def federate(config: RunConfig, upto: int | None = None) -> Server:
    server = build_server(config)
    rounds(server, config, upto or config.rounds)
    return server


def same(first: State, second: State) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def conf_names(group: str) -> list[str]:
    """Every yaml of a group: a new component is tested by existing."""
    folder = ROOT / "conf" / group
    return sorted(path.stem for path in folder.glob("*.yaml"))
