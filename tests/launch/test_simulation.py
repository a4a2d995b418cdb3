"""The launcher against real Flower processes: trivial apps without torch, bounded waits for observed events."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from sofed_flwr.core.errors import RunFailed
from sofed_flwr.launch import simulation as launcher
from sofed_flwr.launch.simulation import SimulationJob, simulate
from sofed_flwr.launch.workers import Workers
from tests.support.fleet_processes import answer_to

NASTY = """a='x y' b="say \\"hi\\"" c=[1,{k: v}] d==é😀 # no comment \\ ${e} \t\n\x01\x7f .toml"""

PYPROJECT = """
[project]
name = "launcher-test"
version = "1.0.0"
description = "Trivial"
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "test"
fab-include = ["/*.py"]
[tool.flwr.app.components]
serverapp = "server_app:app"
clientapp = "client_app:app"
[tool.flwr.app.config]
overrides = ""
"""

CLIENT_APP = """
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()

@app.query()
def query(message: Message, context: Context) -> Message:
    return Message(RecordDict(), reply_to=message)
"""

# {notes} is a directory. The query makes sure that Ray and its workers exist before the body runs.
SERVER_APP = """
import os, time
from pathlib import Path
from flwr.app import Context, Message, MessageType, RecordDict
from flwr.serverapp import Grid, ServerApp

app = ServerApp()
notes = Path({notes!r})

@app.main()
def main(grid: Grid, context: Context) -> None:
    (notes / "home").write_text(os.environ["FLWR_HOME"])
    while not (nodes := list(grid.get_node_ids())):
        time.sleep(0.05)
    messages = [Message(RecordDict(), node, MessageType.QUERY) for node in nodes]
    replies = list(grid.send_and_receive(messages, timeout=120))
    (notes / "replies").write_text(str(sum(not reply.has_error() for reply in replies)))
    {body}
"""

SUPERLINK = "sofed_flwr.launch.private_superlink"
FOREVER = "(notes / 'running').touch(); time.sleep(600)"


@pytest.fixture
def make_job(tmp_path: Path) -> Callable[[str, str], SimulationJob]:
    def make(body: str, overrides: str = "") -> SimulationJob:
        app = tmp_path / "app"
        app.mkdir()
        (app / "pyproject.toml").write_text(PYPROJECT)
        (app / "client_app.py").write_text(CLIENT_APP)
        (app / "server_app.py").write_text(SERVER_APP.format(notes=str(tmp_path), body=body))
        return SimulationJob(app, overrides, nodes=3, workers=Workers(2), log=tmp_path / "logs" / "flower.log")

    return make


def living(home: str) -> list[psutil.Process]:
    """All processes of one run; found without the launcher's own search."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("FLWR_HOME") == home and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def named(processes: list[psutil.Process], name: str) -> list[psutil.Process]:
    found = []
    for process in processes:
        with suppress(psutil.Error):
            if process.name().startswith(name) or name in process.cmdline():
                found.append(process)
    return found


def start(job: SimulationJob) -> "subprocess.Popen[bytes]":
    """A command that simulates."""
    program = f"from pathlib import *; from sofed_flwr.launch.simulation import *; simulate({job!r}, lambda: None)"
    return subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, start_new_session=True)


def ports(processes: list[psutil.Process]) -> list[int]:
    return [link.laddr.port for process in processes for link in process.net_connections() if link.status == "LISTEN"]


def wait_for(event: Callable[[], object], seconds: float = 180.0) -> None:
    end = time.monotonic() + seconds
    while not event():
        assert time.monotonic() < end, "the event did not come"
        time.sleep(0.05)


def assert_nothing_left(notes: Path) -> None:
    home = (notes / "home").read_text()
    assert living(home) == []
    assert not Path(home).exists()


@pytest.mark.flower
def test_an_app_gets_the_exact_overrides_and_its_failure_is_told_in_its_own_words(
    make_job: Callable[..., SimulationJob], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # as in a notebook
    body = (
        "(notes / 'overrides').write_bytes(context.run_config['overrides'].encode()); print('the server speaks')\n"
        "    raise ValueError('the buffer is on fire')"
    )
    job = make_job(body, NASTY)
    ticks: list[float] = []
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]

    with pytest.raises(RunFailed) as caught:
        simulate(job, lambda: ticks.append(time.monotonic()), interval=0.1)

    assert str(caught.value) == "the buffer is on fire"
    assert (tmp_path / "overrides").read_bytes().decode() == NASTY
    assert (tmp_path / "replies").read_text() == "3"
    assert len(ticks) > 10
    assert "the server speaks" in job.log.read_text()
    assert handlers == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    assert_nothing_left(tmp_path)


@pytest.mark.flower
def test_a_killed_command_leaves_nothing(make_job: Callable[..., SimulationJob], tmp_path: Path) -> None:
    """And while it lives, its Flower and its Ray hear this machine only, and no other user of it gives them orders."""
    child = start(make_job(FOREVER))
    try:
        wait_for(lambda: (tmp_path / "running").exists() or child.poll() is not None)
        home = (tmp_path / "home").read_text()
        family = living(home)
        assert all(
            named(family, name) for name in (SUPERLINK, "flwr-simulation", "raylet", "gcs_server", "ray::ClientApp")
        )
        heard = [link.laddr.ip for process in family for link in process.net_connections() if link.status == "LISTEN"]
        assert {ip.removeprefix("::ffff:") for ip in heard} == {"127.0.0.1"}
        if os.getuid() == 0:
            (port,) = ports(named(family, SUPERLINK))
            assert answer_to(65534, port).startswith("HTTP/1.1 403 ")
            assert answer_to(0, port).startswith("HTTP/1.1 200 ")
    finally:
        child.kill()
    wait_for(lambda: not living(home) and not Path(home).exists(), 15)
    child.communicate()


@pytest.mark.flower
def test_killed_simulation_is_a_failure_and_no_hang(make_job: Callable[..., SimulationJob], tmp_path: Path) -> None:
    killed: list[float] = []

    def kill_once() -> None:
        if not killed and (tmp_path / "running").exists():
            named(living((tmp_path / "home").read_text()), "flwr-simulation")[0].kill()
            killed.append(time.monotonic())

    job = make_job(FOREVER)
    with pytest.raises(RunFailed, match="process is gone and its run counts as running") as caught:
        simulate(job, kill_once)

    assert str(job.log) in str(caught.value)
    assert time.monotonic() - killed[0] < 30
    assert_nothing_left(tmp_path)


@pytest.mark.flower
def test_refused_app_gives_flowers_own_reason(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(PYPROJECT.replace("serverapp =", "server ="))
    with pytest.raises(RunFailed, match=r"serverapp"):
        simulate(SimulationJob(tmp_path, "", 1, Workers(1), tmp_path / "flower.log"), lambda: None)


@pytest.mark.flower
def test_failing_tick_leaves_nothing(make_job: Callable[..., SimulationJob], tmp_path: Path) -> None:
    def tick() -> None:
        children = [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]
        (superlink,) = named(children, SUPERLINK)
        (tmp_path / "home").write_text(superlink.environ()["FLWR_HOME"])
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        simulate(make_job("pass"), tick)
    assert_nothing_left(tmp_path)


def test_superlink_that_dies_at_start_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    header = "\x1b[91mERROR \x1b[0m:     Traceback (most recent call last):"
    (tmp_path / "words").write_text("\n".join([header, "  x = 1", *2 * ["OSError: no ports today"], "INFO bye"]))
    (tmp_path / "python").write_text(f"#!/bin/sh\ncat '{tmp_path}/words'\nexit 3\n")
    (tmp_path / "python").chmod(0o755)
    monkeypatch.setattr(launcher.sys, "executable", str(tmp_path / "python"))
    log = tmp_path / "flower.log"
    log.write_text("ERROR of an earlier run\n")

    with pytest.raises(RunFailed) as caught:
        simulate(SimulationJob(tmp_path, "", 1, Workers(1), log), lambda: None)
    assert str(caught.value) == f"Flower's SuperLink died. See {log}, which ends with:\nOSError: no ports today"
