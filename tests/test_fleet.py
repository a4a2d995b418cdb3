"""One federation of real processes, one story of mishaps, and what each of them costs (docs/reliability.md).

Five provisioned devices over TLS with node keys, their spools filled while they train. The story is told once; each
test reads one chapter of it. Device 4 is hostile.
"""

import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from sofed_flwr.encoder_file import load_encoder
from sofed_flwr.runlog import Row
from sofed_flwr.stops import TooFewDevicesError
from sofed_flwr.store import Store
from tests.fleet import Fleet
from tests.fleet_processes import ending, newest, wait_for
from tests.spools import filling

pytestmark = pytest.mark.fleet

DEADLINE = 55.0
"""Less than the minute after which Flower itself gives a silent device up, more than an undisturbed round takes."""
OVERRIDES = [
    *("scale=smoke", "dataset=shapes", "clients=5", "rounds=4", "stream.segments=2", "evaluation.every=4"),
    *(f"federation.deadline={DEADLINE:g}", "federation.quorum=2", "federation.everyone=150"),
]
HOSTILE = '''
    from dataclasses import replace
    honest = bridge.pack_update

    def pack_update(update, task):
        """NaN in round 1, a shape that would broadcast in round 3, someone else's round in round 4."""
        name = sorted(update.shared)[0]
        if update.round == 1:
            update.shared[name].fill_(float("nan"))
        elif update.round == 3:
            update.shared[name] = update.shared[name].reshape(-1)[:1]
        elif update.round == 4:
            update = replace(update, round=2)
        return honest(update, task)

    bridge.pack_update = pack_update
'''


@dataclass
class Story:
    """What was seen, by the chapter that caused it."""

    fleet: Fleet
    seconds: dict[str, float] = field(default_factory=dict)
    digests: dict[str, Any] = field(default_factory=dict)
    endings: dict[str, tuple[int, str]] = field(default_factory=dict)


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    folder = tmp_path_factory.mktemp("fleet")
    fleet = Fleet(folder, 5, HOSTILE)
    try:
        with filling([node.spool for node in fleet.nodes], every=0.5):
            yield _tell(Story(fleet))
    finally:
        fleet.stop()


def _tell(story: Story) -> Story:
    fleet = story.fleet
    fleet.start_server()
    fleet.register()
    for node in fleet.nodes:
        node.start()
    run = fleet.run(*OVERRIDES)
    fleet.wait_until_committed(1)
    _plug_crash_and_freeze(story)
    story.endings["server killed"] = _kill_the_server(story, run)
    story.endings["app killed"] = _kill_the_app(story)
    story.endings["end"] = ending(fleet.run(*OVERRIDES))
    story.endings["too few"] = _too_few(story)
    print(fleet.report(4), {name: round(value, 1) for name, value in story.seconds.items()}, sep="\n")
    return story


def _plug_crash_and_freeze(story: Story) -> None:
    """Round 2: device 1 loses power, the training process of device 2 is killed, device 3 freezes."""
    fleet = story.fleet
    one, two, three = fleet.nodes[1:4]
    for number, name in enumerate(("cut", "crash"), start=1):
        story.digests[f"before the {name}"] = newest(fleet.nodes[number].files)
    struck = fleet.strike(2, {1: one.pull_the_plug, 2: lambda: two.kill_client(2), 3: three.freeze})
    for number, name in enumerate(("cut", "crash"), start=1):
        story.digests[f"after the {name}"] = newest(fleet.nodes[number].files)
    fleet.wait_until_committed(2)
    three.thaw()
    with fleet.paused():
        wait_for(lambda: one.connections() == 2, "device 1 online again")
        story.seconds["device 1 online"] = time.monotonic() - struck[1]
    wait_for(lambda: one.work(4), "device 1 at work again")
    story.seconds["device 1 back at work"] = time.monotonic() - struck[1]


def _kill_the_server(story: Story, run: "subprocess.Popen[str]") -> tuple[int, str]:
    """Round 4: kill -9 of the SuperLink; it is started again on its database."""
    fleet = story.fleet
    fleet.strike(4, {0: fleet.kill_server})
    told = ending(run)
    story.digests["server before"] = newest(fleet.out / "checkpoint")
    fleet.start_server()
    return told


def _kill_the_app(story: Story) -> tuple[int, str]:
    """Round 4 again, by the same command; then kill -9 of the ServerApp."""
    fleet = story.fleet
    earlier = {work.run for node in fleet.nodes if (work := node.work(4))}
    typed = time.time()
    run = fleet.run(*OVERRIDES)

    def first() -> float | None:
        works = [node.work(4) for node in fleet.nodes]
        return min((work.sent for work in works if work and work.run not in earlier), default=None)

    story.seconds["resumed"] = wait_for(first, "the first task of the resumed run") - typed
    story.digests["server after"] = newest(fleet.out / "checkpoint")
    fleet.kill_server_app()
    killed = time.monotonic()
    told = ending(run)
    story.seconds["app missed"] = time.monotonic() - killed
    return told


def _too_few(story: Story) -> tuple[int, str]:
    """A run that wants six devices where there are five."""
    few = ["scale=smoke", "clients=6", "federation.quorum=6", "federation.everyone=1", "federation.wait=5"]
    return ending(story.fleet.run(*few, out="too-few"))


def reasons(rows: list[Row]) -> dict[int, str]:
    return {row["device"]: row["reason"] for row in rows}


def test_a_round_ends_at_its_deadline_without_the_devices_that_died_or_froze(story: Story) -> None:
    """Faults 1 and 17: the run goes on with the replies of the others."""
    assert story.fleet.replied(2) == [0, 4]
    told = reasons(story.fleet.rows("dropped", 2))
    assert sorted(told) == [1, 2, 3]
    assert told[2] == f"no reply within {DEADLINE:g} s"
    assert abs(story.fleet.seconds(2) - DEADLINE) < 5


def test_a_device_whose_training_process_dies_takes_part_in_the_next_round(story: Story) -> None:
    """Fault 4; SuperNode and server live on."""
    assert 2 in story.fleet.replied(3)
    assert story.digests["after the crash"] == story.digests["before the crash"] != ""


def test_a_device_started_again_trains_on_from_its_last_commit(story: Story) -> None:
    """Fault 2: refused until the server counts it as offline, at most a minute; then the next round has it.

    75 s at most, and 10 more for starting programs on a machine that runs other tests.
    """
    assert story.digests["after the cut"] == story.digests["before the cut"] != ""
    assert story.seconds["device 1 online"] < 75 + 10
    assert story.seconds["device 1 back at work"] < 75 + DEADLINE
    assert 1 in story.fleet.replied(4)


def test_a_frozen_device_is_used_again(story: Story) -> None:
    """In the next round, unless Flower had already counted it as offline: then in the one after."""
    assert 3 in story.fleet.replied(3) + story.fleet.replied(4)


def test_a_killed_server_continues_from_the_last_committed_round(story: Story) -> None:
    """Fault 5: the same command; the global model is the one that was committed, to the byte."""
    code, text = story.endings["server killed"]
    assert code == 1
    assert "the same command continues" in text
    assert story.digests["server after"] == story.digests["server before"] != ""
    assert story.seconds["resumed"] < 30


def test_a_killed_server_app_is_missed_at_once_and_continues_too(story: Story) -> None:
    code, text = story.endings["app killed"]
    assert code == 1
    assert "The ServerApp's process is gone" in text
    assert story.seconds["app missed"] < 40
    assert "the same command continues" in text


def test_the_run_ends_with_an_encoder_and_every_round_counted_once(story: Story) -> None:
    code, text = story.endings["end"]
    assert code == 0, text
    fleet = story.fleet
    assert load_encoder(fleet.out / "encoder.safetensors")
    assert [row["round"] for row in fleet.rows("replies")] == [1, 2, 3, 4]


def test_each_bad_reply_of_the_hostile_device_is_dropped_alone_and_by_name(story: Story) -> None:
    """Faults 12, 14 and 16, over the wire."""
    told = {row["round"]: row["reason"] for row in story.fleet.rows("dropped") if row["device"] == 4}
    assert "not finite" in told[1]
    assert "has shape (1,)" in told[3]
    assert "answers round 2, expected 4" in told[4]
    assert 4 in story.fleet.replied(2)


def test_what_a_device_remembers_at_the_end_is_what_it_committed(story: Story) -> None:
    for node in story.fleet.nodes:
        held = Store(node.files).newest()
        assert held is not None
        assert held.meta["round"] == 4
        assert len(held.tensors["buffer.ages"]) == 16


def test_too_few_devices_end_a_run_with_an_exit_code_of_its_own(story: Story) -> None:
    """Fault 18."""
    code, text = story.endings["too few"]
    assert code == TooFewDevicesError.EXIT_CODE
    assert "5 of at least 6 are here, missing [5]" in text


def test_no_log_of_a_device_or_of_the_server_names_a_file(story: Story) -> None:
    """Fault 29."""
    logs = [*story.fleet.folder.glob("*.log"), story.fleet.folder / "run" / "flower.log"]
    assert len(logs) == 7
    assert not any(b"secret-name" in log.read_bytes() for log in logs)
