"""One federation of real processes, one story of mishaps, and what each of them costs (docs/reliability.md).

Four provisioned devices over TLS with node keys, their spools filled while they train. The story is told once; each
test reads one chapter of it. Device 3 is hostile.
"""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from sofed_flwr.core.errors import TooFewDevicesError
from sofed_flwr.encoder import load_encoder
from sofed_flwr.storage.generations import Store
from sofed_flwr.storage.metrics_log import Row
from tests.support.fleet import Fleet
from tests.support.fleet_processes import ending, newest, wait_for
from tests.support.spools import filling

pytestmark = pytest.mark.fleet

DEADLINE = 55.0
"""Less than the minute after which Flower itself gives a silent device up, more than an undisturbed round takes."""
OVERRIDES = [
    *("scale=smoke", "dataset=shapes", "clients=4", "rounds=4", "stream.segments=2", "evaluation.every=4"),
    *(f"federation.round_deadline_s={DEADLINE:g}", "federation.quorum=1", "federation.first_round_wait_s=150"),
]
HINT = "continue from the last committed round with: the same command"
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
    answers: dict[int, str] = field(default_factory=dict)


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    folder = tmp_path_factory.mktemp("fleet")
    fleet = Fleet(folder, 4, HOSTILE)
    try:
        with filling([node.spool for node in fleet.nodes], every=0.5):
            yield _tell(Story(fleet))
    finally:
        fleet.stop()


def _tell(story: Story) -> Story:
    fleet = story.fleet
    fleet.start_server()
    fleet.register()
    _viewers_come_and_go(story)
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


def _viewers_come_and_go(story: Story) -> None:
    """A run that waits for its devices: a second viewer and a second run come, both viewers go, a stop ends it."""
    fleet = story.fleet
    first = fleet.run(*OVERRIDES, out="first")
    fleet.wait_until_watched(first)
    second, other = fleet.run(*OVERRIDES, out="first"), fleet.run(*OVERRIDES, out="other")
    fleet.wait_until_watched(second)
    second.send_signal(signal.SIGINT)
    first.send_signal(signal.SIGHUP)
    story.endings |= {"second viewer": ending(second), "first viewer": ending(first), "second run": ending(other)}
    if os.getuid() == 0:
        story.answers = {user: fleet.control_answer(user) for user in (0, 65534)}
    stop = fleet.stop_run()
    story.endings["stop"] = (stop.wait(), stop.communicate()[0])


def _plug_crash_and_freeze(story: Story) -> None:
    """Round 2: device 0 freezes, device 1 loses power, the training process of device 2 is killed."""
    fleet = story.fleet
    zero, one, two = fleet.nodes[:3]
    for number, name in enumerate(("cut", "crash"), start=1):
        story.digests[f"before the {name}"] = newest(fleet.nodes[number].files)
    struck = fleet.strike(2, {0: zero.freeze, 1: one.pull_the_plug, 2: lambda: two.kill_client(2)})
    for number, name in enumerate(("cut", "crash"), start=1):
        story.digests[f"after the {name}"] = newest(fleet.nodes[number].files)
    fleet.wait_until_committed(2)
    zero.thaw()
    with fleet.paused():
        wait_for(lambda: one.connections() == 2, "device 1 online again")
        story.seconds["device 1 online"] = time.monotonic() - struck[1]
    wait_for(lambda: one.work(4), "device 1 at work again")
    story.seconds["device 1 back at work"] = time.monotonic() - struck[1]


def _kill_the_server(story: Story, run: "subprocess.Popen[str]") -> tuple[int, str]:
    """Round 4: kill -9 of the SuperLink; it is started again on its database."""
    fleet = story.fleet
    fleet.strike(4, {2: fleet.kill_server})
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
        assert run.poll() is None, run.communicate()
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
    """A run that wants six devices where there are four."""
    few = [
        "scale=smoke",
        "clients=6",
        "federation.quorum=6",
        "federation.first_round_wait_s=1",
        "federation.quorum_wait_s=5",
    ]
    return ending(story.fleet.run(*few, out="too-few"))


def reasons(rows: list[Row]) -> dict[int, str]:
    return {row["device"]: row["reason"] for row in rows}


def test_viewers_come_and_go_and_only_a_stop_ends_the_run(story: Story) -> None:
    folder, site = story.fleet.folder / "first", story.fleet.site.directory
    for viewer in ("first viewer", "second viewer"):
        code, text = story.endings[viewer]
        assert code == 130
        assert f"the run in {folder} goes on; the same command shows it again, sofed stop {site} ends it" in text
    assert story.endings["stop"] == (0, f"stopped the run in {folder}\n")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")
def test_no_other_user_of_the_machine_steers_the_fleet(story: Story) -> None:
    assert story.answers[0].startswith("HTTP/1.1 200 ")
    assert story.answers[65534].startswith("HTTP/1.1 403 ")


def test_a_second_run_is_refused_with_the_directory_of_the_first(story: Story) -> None:
    code, text = story.endings["second run"]
    assert code == 2
    assert f"is busy with the run in {story.fleet.folder / 'first'}" in text


def test_a_round_ends_at_its_deadline_without_the_devices_that_died_or_froze(story: Story) -> None:
    """The run goes on with the replies of the others."""
    assert story.fleet.replied(2) == [3]
    told = reasons(story.fleet.rows("dropped", 2))
    assert sorted(told) == [0, 1, 2]
    assert told[2] == f"no reply within {DEADLINE:g} s"
    assert abs(story.fleet.seconds(2) - DEADLINE) < 5


def test_a_device_whose_training_process_dies_takes_part_in_the_next_round(story: Story) -> None:
    """SuperNode and server live on."""
    assert 2 in story.fleet.replied(3)
    assert story.digests["after the crash"] == story.digests["before the crash"] != ""


def test_a_device_started_again_trains_on_from_its_last_commit(story: Story) -> None:
    """Refused until the server counts it as offline, at most a minute; then the next round has it.

    75 s at most, and 10 more for starting programs on a machine that runs other tests.
    """
    assert story.digests["after the cut"] == story.digests["before the cut"] != ""
    assert story.seconds["device 1 online"] < 75 + 10
    assert story.seconds["device 1 back at work"] < 75 + DEADLINE
    assert 1 in story.fleet.replied(4)


def test_a_frozen_device_is_used_again(story: Story) -> None:
    """In the next round, unless Flower had already counted it as offline: then in the one after."""
    assert 0 in story.fleet.replied(3) + story.fleet.replied(4)


def test_a_killed_server_continues_from_the_last_committed_round(story: Story) -> None:
    """The same command; the global model is the one that was committed, to the byte."""
    code, text = story.endings["server killed"]
    assert code == 1
    assert HINT in text
    assert story.digests["server after"] == story.digests["server before"] != ""
    assert story.seconds["resumed"] < 30


def test_a_killed_server_app_is_missed_at_once_and_continues_too(story: Story) -> None:
    code, text = story.endings["app killed"]
    assert code == 1
    assert "The ServerApp's process is gone" in text
    assert story.seconds["app missed"] < 40
    assert HINT in text


def test_the_run_ends_with_an_encoder_and_every_round_counted_once(story: Story) -> None:
    code, text = story.endings["end"]
    assert code == 0, text
    fleet = story.fleet
    assert load_encoder(fleet.out / "encoder.safetensors")
    assert [row["round"] for row in fleet.rows("replies")] == [1, 2, 3, 4]


def test_each_bad_reply_of_the_hostile_device_is_dropped_alone_and_by_name(story: Story) -> None:
    """Over the wire."""
    told = {row["round"]: row["reason"] for row in story.fleet.rows("dropped") if row["device"] == 3}
    assert "not finite" in told[1]
    assert "has shape (1,)" in told[3]
    assert "answers round 2, expected 4" in told[4]
    assert 3 in story.fleet.replied(2)


def test_what_a_device_remembers_at_the_end_is_what_it_committed(story: Story) -> None:
    for node in story.fleet.nodes:
        held = Store(node.files).newest()
        assert held is not None
        assert held.meta["round"] == 4
        assert len(held.tensors["buffer.ages"]) == 16


def test_too_few_devices_end_a_run_with_an_exit_code_of_its_own(story: Story) -> None:
    code, text = story.endings["too few"]
    assert code == TooFewDevicesError.exit_code
    assert "4 of at least 6 are here, missing [4, 5]" in text


def test_no_log_of_a_device_or_of_the_server_names_a_file(story: Story) -> None:
    logs = [*story.fleet.folder.glob("*.log"), story.fleet.folder / "run" / "flower.log"]
    assert len(logs) == 6
    assert not any(b"secret-name" in log.read_bytes() for log in logs)
