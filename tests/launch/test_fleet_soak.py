"""A federation of real processes for a quarter of an hour: what `docs/reliability.md` promises, as often as it says."""

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from sofed_flwr.encoder import load_encoder
from sofed_flwr.storage.generations import Store
from tests.support.fleet import Fleet
from tests.support.fleet_processes import ending, newest, wait_for
from tests.support.spools import filling

pytestmark = pytest.mark.soak

DEADLINE = 40.0
SETTING = [
    *("scale=smoke", "evaluation=none", "clients=5", "stream.segments=2", "federation.quorum=2"),
    *(f"federation.round_deadline_s={DEADLINE:g}", "federation.first_round_wait_s=150"),
]


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    """Five devices at work, their spools being filled."""
    started = Fleet(tmp_path, 5)
    try:
        with filling([node.spool for node in started.nodes], every=0.5):
            started.start_server()
            started.register()
            for node in started.nodes:
                node.start()
            yield started
    finally:
        started.stop()


def committed(fleet: Fleet) -> dict[int, str]:
    return {node.number: newest(node.files) for node in fleet.nodes}


def test_ten_rounds_with_a_power_cut_and_a_killed_server_end_with_an_encoder(fleet: Fleet) -> None:
    """Device 1 loses power in round 3 and starts again; the SuperLink is killed in round 6 and started again."""
    command = [*SETTING, "rounds=10"]
    first = fleet.run(*command)
    fleet.wait_until_committed(2)
    one = fleet.nodes[1]
    before = newest(one.files)
    cut = fleet.strike(3, {1: one.pull_the_plug})[1]
    assert newest(one.files) == before != "", "the buffer on disk is the last commit, to the byte"
    wait_for(lambda: any(one.work(number) for number in range(4, 11)), "device 1 at work again")
    back = time.monotonic() - cut

    fleet.wait_until_committed(5)
    model = newest(fleet.out / "checkpoint")
    fleet.strike(6, {0: fleet.kill_server})
    code, text = ending(first)
    assert (code, "with: the same command" in text) == (1, True)
    fleet.start_server()
    assert newest(fleet.out / "checkpoint") == model != ""
    code, text = ending(fleet.run(*command), seconds=900)
    print(f"\n{fleet.report(10)}\ndevice 1 at work again {back:.0f} s after the cut")
    assert code == 0, text

    assert [row["round"] for row in fleet.rows("replies")] == list(range(1, 11))
    assert load_encoder(fleet.out / "encoder.safetensors")
    held = [Store(node.files).newest() for node in fleet.nodes]
    assert [generation.meta["round"] for generation in held if generation] == [10] * 5


def test_twenty_killed_training_processes_cost_twenty_replies(fleet: Fleet) -> None:
    """Two of five devices in each of ten rounds: out of that round, in the next, the buffer as committed."""
    victims = {number: {2 * number % 5, (2 * number + 1) % 5} for number in range(1, 11)}
    run = fleet.run(*SETTING, "rounds=11")
    changed = []
    for number, devices in victims.items():
        before = committed(fleet)
        fleet.strike(number, {device: partial(fleet.nodes[device].kill_client, number) for device in devices})
        fleet.wait_until_committed(number)
        after = committed(fleet)
        changed += [(number, device) for device in devices if after[device] != before[device]]
    code, text = ending(run)
    print(f"\n{fleet.report(11)}")
    assert code == 0, text
    cases = [(number, device) for number, devices in victims.items() for device in devices]
    in_the_same = [(number, device) for number, device in cases if device in fleet.replied(number)]
    not_in_the_next = [(number, device) for number, device in cases if device not in fleet.replied(number + 1)]
    assert (len(cases), in_the_same, not_in_the_next, changed) == (20, [], [], [])
