"""What the gate costs: five ResNet-18 updates of 50 MB from message to committed round, on one thread and on two."""

import statistics
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import pytest
import torch

from sofed_flwr.build import build_server
from sofed_flwr.codecs.fp32 import FP32
from sofed_flwr.config.compose import compose
from sofed_flwr.flower.messages import Task, pack_model, pack_task, pack_update, unpack_update
from tests.server.test_update_faults import step
from tests.support.replies import aggregate

pytestmark = [pytest.mark.soak, pytest.mark.usefixtures("_inside_a_run")]


class Stopwatch:
    """Seconds spent in a function, over all its calls."""

    def __init__(self, function: Callable[..., object]) -> None:
        self.function, self.seconds = function, 0.0

    def __call__(self, *arguments: object) -> object:
        began = perf_counter()
        try:
            return self.function(*arguments)
        finally:
            self.seconds += perf_counter() - began


@pytest.mark.parametrize("threads", [1, 2])
def test_the_gate_is_a_small_part_of_what_a_round_costs_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    torch.set_num_threads(threads)
    sizes = ["encoder=resnet18", "heads.hidden=1024", "heads.output=256"]
    config = compose([*sizes, "clients=5", "rounds=9", "evaluation=none", f"out={tmp_path}"])
    server = build_server(config)
    shares, spent = [], []
    for number in range(1, 10):
        task = pack_task(Task(config.to_yaml(), server.run, number, 0), pack_model(server.shared), node=5, ttl=60)
        messages = [pack_update(step(server.shared, device, number), task) for device in range(5)]
        gate = Stopwatch(server.gate.check)
        monkeypatch.setattr(server.gate, "check", gate)
        began = perf_counter()
        aggregate(server, number, [unpack_update(m, k, server.shared, FP32()) for k, m in enumerate(messages)], {})
        server.close_round(number)
        shares.append(gate.seconds / (perf_counter() - began))
        spent.append(gate.seconds)
    share, seconds = statistics.median(shares), statistics.median(spent)
    print(f"\n{threads} threads: gate {seconds * 1000:.0f} ms, {share:.0%} of decoding, gate, mean and commit")
    assert share < 0.25
