"""Bad updates through the real server, and bad messages through the real strategy: who is dropped, what is left."""

import io
import os
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from flwr.app import Message
from torch import Tensor

from sofed_flwr.build import build_device, build_server
from sofed_flwr.config.compose import compose
from sofed_flwr.config.schema import RunConfig
from sofed_flwr.core.errors import DamagedFileError, RunStoppedError
from sofed_flwr.core.records import State, Update
from sofed_flwr.encoder import load_encoder
from sofed_flwr.flower.messages import pack_model, pack_update, unpack_model, unpack_task
from sofed_flwr.server.rounds import Server
from sofed_flwr.storage.metrics_log import read_rows
from tests.flower.test_messages import Grid, context, strategy_of
from tests.support.federation import federate, same
from tests.support.replies import aggregate

Smoke = Callable[..., RunConfig]


def step(shared: State, device: int, round_number: int, size: float = 0.01) -> Update:
    """An honest update without the training: a common direction, a device's own, and a count."""
    common, own = (torch.Generator().manual_seed(seed) for seed in (round_number, 1000 * round_number + device))

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_floating_point():
            return tensor + 1
        return tensor + size * (
            torch.randn(tensor.shape, generator=common) + torch.randn(tensor.shape, generator=own) / 2
        )

    # a resumed server has the same tensors in another order
    return Update(device, round_number, {name: moved(shared[name]) for name in sorted(shared)}, {"loss": 1.0})


def dropped(server: Server) -> list[tuple[int, int, str]]:
    rows = read_rows(server.directory.log.path)
    return [(row["round"], row["device"], row["reason"]) for row in rows if row["name"] == "dropped"]


# updates


def test_one_poisoned_device_of_five_for_twenty_rounds_leaves_the_mean_of_the_other_four(smoke: Smoke) -> None:
    server = build_server(smoke("clients=5", "rounds=20", "evaluation.every=20"))
    names = [name for name, tensor in server.shared.items() if tensor.is_floating_point()]
    worst = 0.0
    for number in range(1, 21):
        crowd = [step(server.shared, device, number) for device in range(5)]
        bad = number % 5
        honest = [update for update in crowd if update.device != bad]
        expected = {name: torch.stack([u.shared[name].double() for u in honest]).mean(0) for name in names}
        crowd[bad].shared[names[number % len(names)]].view(-1)[0] = (torch.nan, torch.inf, -torch.inf)[number % 3]
        aggregate(server, number, crowd, {})
        worst = max(worst, *(float((server.shared[name] - expected[name]).abs().max()) for name in names))
        assert all(torch.isfinite(tensor).all() for tensor in server.shared.values())
    assert worst <= 1e-6
    assert [(number, device) for number, device, _ in dropped(server)] == [(n, n % 5) for n in range(1, 21)]
    assert all("holds a value that is not finite" in reason for _, _, reason in dropped(server))


# messages


Forge = Callable[[Message], None]


class ForgingGrid(Grid):
    """One node for all devices; `forge` spoils the honest reply of a device in a round."""

    def __init__(self, forge: dict[tuple[int, int], Forge]) -> None:
        super().__init__(n5={"partition-id": 0})
        self.forge = forge

    def replies(self, message: Message) -> Iterator[Message]:
        if not message.content.config_records:
            yield from super().replies(message)
            return
        task, shared = unpack_task(message, context(**{"partition-id": 0}))
        answer = pack_update(step(shared, task.device, task.round), message)
        self.forge.get((task.round, task.device), lambda _: None)(answer)
        yield answer


def run(config: RunConfig, forge: dict[tuple[int, int], Forge]) -> Server:
    strategy = strategy_of(config, ForgingGrid(forge))
    strategy.run()
    return strategy.server


def repacked(change: Callable[[State], object]) -> Forge:
    """Another model in an otherwise honest reply."""

    def forge(message: Message) -> None:
        state = unpack_model(message.content.array_records["shared"])
        change(state)
        message.content["shared"] = pack_model(state)

    return forge


def replaced(change: Callable[[Tensor], Tensor]) -> Forge:
    """Change the first tensor, a convolution's weight."""
    return repacked(lambda state: state.update({FIRST: change(state[FIRST])}))


FIRST = "online.backbone.conv1.weight"


def counted(**counts: float) -> Forge:
    return lambda message: message.content.metric_records["counts"].update(counts)


MALFORMED: dict[str, tuple[Forge, str]] = {
    "missing": (
        repacked(lambda state: state.pop(FIRST)),
        f"tensor names differ from the global model's, first of 1: {FIRST}",
    ),
    "extra": (repacked(lambda state: state.update(more=torch.zeros(1))), "first of 1: more"),
    "broadcastable": (replaced(lambda tensor: tensor[:1, :1, :1, 0]), "has shape (1, 1, 1)"),
    "transposed": (replaced(lambda tensor: tensor.transpose(0, 1)), "has shape (3, 4, 3, 3)"),
    "float64": (replaced(lambda tensor: tensor.double()), "has dtype torch.float64"),
    "integer": (replaced(lambda tensor: tensor.int()), "has dtype torch.int32"),
    "stale": (counted(round=0), "answers round 0, expected 1"),
}


@pytest.mark.usefixtures("_inside_a_run")
def test_malformed_and_stale_replies_drop_only_themselves_and_the_run_goes_on(smoke: Smoke) -> None:
    config = smoke("clients=9", "rounds=2", "evaluation.every=2")
    server = run(config, {(1, device): forge for device, (forge, _) in enumerate(MALFORMED.values(), start=1)})
    reasons = {device: reason for number, device, reason in dropped(server) if number == 1}
    assert sorted(reasons) == list(range(1, 8))
    for device, (_, expected) in enumerate(MALFORMED.values(), start=1):
        assert expected in reasons[device]
    replies = [row["value"] for row in read_rows(server.directory.log.path) if row["name"] == "replies"]
    assert replies == [2, 9]
    assert server.committed == 2


@pytest.mark.usefixtures("_inside_a_run")
@pytest.mark.parametrize("value", [0, -2, 1e12, float("nan")])
def test_what_a_device_says_of_its_number_of_examples_weighs_nothing(smoke: Smoke, value: float) -> None:
    size = ["clients=3", "rounds=1"]
    honest = run(smoke(*size, out="honest"), {})
    boasting = run(smoke(*size, out="boasting"), {(1, 0): counted(**{"num-examples": value, "seen": value})})
    assert max(float((boasting.shared[n] - t).abs().max()) for n, t in honest.shared.items()) == 0
    assert not dropped(boasting)


@pytest.mark.usefixtures("_inside_a_run")
def test_three_rounds_of_nothing_but_bad_replies_stop_the_run_and_leave_the_model(smoke: Smoke) -> None:
    config = smoke("clients=2", "rounds=9", "evaluation.every=9")
    nan = replaced(lambda tensor: tensor * torch.nan)
    with pytest.raises(RunStoppedError, match=r"round 5 had 0 usable replies of 1 needed.*; 3 failed rounds in a row"):
        run(config, {(number, device): nan for number in (3, 4, 5) for device in (0, 1)})
    resumed = build_server(compose([f"resume={config.out}"]))
    good = run(smoke("clients=2", "rounds=2", "evaluation.every=9", out="good"), {})
    assert resumed.committed == 4
    assert same(resumed.shared, good.shared)
    rows = read_rows(resumed.directory.log.path)
    assert [row["round"] for row in rows if row["name"] == "failed"] == [3, 4]


# files


class Bomb:
    """Unpickling it runs a command, as the files of a stranger may."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return os.mkdir, (str(self.mark),)


@pytest.mark.parametrize("write", [pickle.dump, torch.save], ids=["pickle", "torch.save"])
def test_a_pickle_bomb_where_weights_are_expected_is_refused_unexploded(
    smoke: Smoke, tmp_path: Path, write: Callable[..., None]
) -> None:
    mark, bomb = tmp_path / "exploded", tmp_path / "bomb.safetensors"
    with bomb.open("wb") as file:
        write(Bomb(mark), file)
    with pytest.raises(DamagedFileError, match=r"bomb\.safetensors is damaged"):
        load_encoder(bomb)

    config = smoke("rounds=1")
    server = federate(config)
    newest = sorted((server.directory.path / "checkpoint").glob("*.safetensors"))[-1]
    newest.write_bytes(bomb.read_bytes())
    assert build_server(compose([f"resume={config.out}"])).committed == 0

    device = build_device(config, server.run, 0)
    for file in device.store.directory.glob("*.safetensors"):
        file.write_bytes(bomb.read_bytes())
    assert device.store.newest() is None

    assert not mark.exists()
    content = io.BytesIO(bomb.read_bytes())
    torch.load(content, weights_only=False) if write is torch.save else pickle.load(content)
    assert mark.exists(), "the bomb is live"
