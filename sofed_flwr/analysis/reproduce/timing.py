"""Seconds per batch of several settings, measured in turn.

On a shared machine two runs an hour apart cannot be compared. Here every setting does one iteration (score, select,
step), then the next one does, and so on: so anything that slows the machine down slows all of them alike.
"""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import mean
from time import perf_counter

from sofed_flwr.build import build_device
from sofed_flwr.config.schema import RunConfig
from sofed_flwr.core import rng
from sofed_flwr.device.participant import Device
from sofed_flwr.device.trainer import Plan

WARM_UP = 5


def batch_seconds(configs: Mapping[str, RunConfig], iterations: int) -> dict[str, float]:
    """Mean seconds per iteration of the first device of every configuration."""
    with tempfile.TemporaryDirectory() as folder:
        devices = {
            name: build_device(config.model_copy(update={"out": str(Path(folder, str(number)))}), "timing", 0)
            for number, (name, config) in enumerate(configs.items())
        }
        seconds: dict[str, list[float]] = {name: [] for name in devices}
        for iteration in range(iterations):
            for name, device in devices.items():
                seconds[name].append(_timed_iteration(device, iteration))
    return {name: mean(times[WARM_UP:] or times) for name, times in seconds.items()}


def _timed_iteration(device: Device, iteration: int) -> float:
    selecting, viewing = (rng.generator(0, 0, iteration, purpose) for purpose in ("select", "views"))
    plan = Plan(1, device.learning_rate(1), selecting, viewing)
    start = perf_counter()
    device.trainer.train(device.stream, device.buffer, plan)
    return perf_counter() - start
