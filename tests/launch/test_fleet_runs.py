"""Who may start, watch and end the runs of a fleet; a stand-in for `flwr` answers for the SuperLink.

The same with real processes, once: `test_fleet.py`.
"""

import errno
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sofed_flwr.cli.main import app
from sofed_flwr.core.errors import ConfigError, RunFailed, RunGoesOnError, TerminatedError
from sofed_flwr.launch import flwr_cli as flower_commands
from sofed_flwr.launch.fleet_run import FleetJob, stop_runs, train_on_fleet
from sofed_flwr.storage.run_directory import RunDirectory
from tests.launch.test_simulation import PYPROJECT
from tests.support.fleet_processes import wait_for

# {runs} is a directory: one file per run, its name the id, its content the status. `log` ends with the run.
FLWR = """#!{python} -S
import json, os, pathlib, sys, time
runs, (command, *rest) = pathlib.Path({runs!r}), sys.argv[1:]
runs.with_name("called").open("a").write(command + chr(10))
answer = {{"success": True}}
if command == "run":
    answer["run-id"] = str(7 + len(list(runs.iterdir())))
    (runs / answer["run-id"]).write_text("running")
elif command == "stop":
    (runs / rest[0]).write_text("finished:stopped")
elif command == "list":
    wanted = rest[rest.index("--run-id") + 1] if "--run-id" in rest else None
    files = [file for file in runs.iterdir() if wanted in (None, file.name)]
    answer["runs"] = [{{"run-id": f.name, "status": f.read_text(), "status-details": ""}} for f in files]
elif command == "log":
    while (runs / rest[0]).read_text() == "running":
        time.sleep(0.05)
print(json.dumps(answer))
"""


class Site:
    """A provisioned directory, as far as runs are concerned, and the runs of its SuperLink."""

    def __init__(self, folder: Path) -> None:
        self.directory, self.runs, self.called = folder / "site", folder / "superlink", folder / "called"
        self.home = self.directory / "server" / "flower"
        self.home.mkdir(parents=True)
        (self.home / "config.toml").touch()
        self.runs.mkdir()
        self.app = folder / "app"
        self.app.mkdir()
        (self.app / "pyproject.toml").write_text(PYPROJECT)

    def job(self, name: str = "run") -> FleetJob:
        folder = self.directory / name
        folder.mkdir(exist_ok=True)
        return FleetJob(self.app, "", self.directory, folder, folder / "flower.log")

    def statuses(self) -> dict[str, str]:
        return {file.name: file.read_text() for file in sorted(self.runs.iterdir())}

    def calls(self, command: str) -> int:
        return self.called.read_text().split().count(command) if self.called.exists() else 0

    def end(self) -> None:
        for run in self.runs.iterdir():
            run.write_text("finished:completed")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    site = Site(tmp_path)
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "flwr").write_text(FLWR.format(python=sys.executable, runs=str(site.runs)))
    (programs / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    for program in programs.iterdir():
        program.chmod(0o755)
    monkeypatch.setattr(flower_commands.sys, "executable", str(programs / "python"))
    return site


def raising(error: type[BaseException], when: Callable[[], object]) -> Callable[[], None]:
    """A tick at which a signal arrives, once."""
    sent: list[bool] = []

    def tick() -> None:
        if not sent and when():
            sent.append(True)
            raise error

    return tick


def test_a_second_run_is_refused_with_the_directory_of_the_first(site: Site) -> None:
    with pytest.raises(RunGoesOnError):
        train_on_fleet(site.job("one"), raising(TerminatedError, lambda: site.calls("log")))
    with pytest.raises(ConfigError) as caught:
        train_on_fleet(site.job("two"), lambda: None)
    busy = f"--fleet {site.directory}: is busy with the run in {site.directory / 'one'}"
    assert str(caught.value) == f"{busy}; wait for its end, or sofed stop {site.directory}"
    assert site.statuses() == {"7": "running"}

    site.end()
    with pytest.raises(RunGoesOnError):
        train_on_fleet(site.job("two"), raising(TerminatedError, lambda: site.calls("log") == 2))
    assert site.statuses() == {"7": "finished:completed", "8": "running"}


def test_a_run_that_sofed_did_not_start_is_respected_too(site: Site) -> None:
    (site.runs / "99").write_text("pending")
    with pytest.raises(ConfigError, match=r"is busy with Flower's run 99, which sofed did not start"):
        train_on_fleet(site.job(), lambda: None)


def test_a_run_whose_server_app_is_gone_blocks_nobody(site: Site) -> None:
    with pytest.raises(RunGoesOnError):
        train_on_fleet(site.job("one"), raising(TerminatedError, lambda: site.calls("log")))
    dead = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True)
    RunDirectory(site.directory / "one").lock.path.write_text(dead.stdout)
    with pytest.raises(RunGoesOnError):
        train_on_fleet(site.job("two"), raising(TerminatedError, lambda: site.calls("log") == 2))
    assert site.statuses() == {"7": "finished:stopped", "8": "running"}


def test_ctrl_c_stops_a_run_only_where_it_was_submitted(site: Site) -> None:
    with pytest.raises(RunGoesOnError):
        train_on_fleet(site.job(), raising(TerminatedError, lambda: site.calls("log")))
    with pytest.raises(RunGoesOnError) as caught:
        train_on_fleet(site.job(), raising(KeyboardInterrupt, lambda: site.calls("log") == 2))
    how = f"the same command shows it again, sofed stop {site.directory} ends it"
    assert str(caught.value) == f"the run in {site.directory / 'run'} goes on; {how}"
    assert site.statuses() == {"7": "running"}

    site.end()
    with pytest.raises(KeyboardInterrupt):
        train_on_fleet(site.job(), raising(KeyboardInterrupt, lambda: site.calls("log") == 3))
    assert site.statuses() == {"7": "finished:completed", "8": "finished:stopped"}


def test_a_signal_during_the_submission_finds_a_recorded_run(site: Site) -> None:
    """`flwr run` takes seconds; a run whose id nobody has read could be neither watched nor stopped."""
    sent: list[bool] = []

    def tick() -> None:
        if not sent and site.calls("run"):
            sent.append(True)
            os.kill(os.getpid(), signal.SIGINT)

    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            train_on_fleet(site.job(), tick, interval=0.0)
    finally:
        signal.signal(signal.SIGINT, previous)
    assert sent
    assert site.statuses() == {"7": "finished:stopped"}


def test_of_three_commands_at_the_same_moment_one_is_refused(site: Site) -> None:
    refused: list[str] = []

    def run(name: str) -> None:
        try:
            train_on_fleet(site.job(name), lambda: None)
        except ConfigError as error:
            refused.append(str(error))

    threads = [threading.Thread(target=run, args=(name,)) for name in ("one", "two", "three")]
    for thread in threads:
        thread.start()
    try:
        wait_for(lambda: len(refused) == 2, "two refusals", 60)
        assert site.statuses() == {"7": "running"}
    finally:
        site.end()
        for thread in threads:
            thread.join()
    assert len(refused) == 2


def test_a_run_that_was_already_ending_when_it_was_found_is_submitted_again(site: Site) -> None:
    """As after the death of a SuperLink, which its ServerApp survives by seconds; nobody stopped that run."""
    with pytest.raises(RunGoesOnError):
        train_on_fleet(site.job(), raising(TerminatedError, lambda: site.calls("log")))

    def tick() -> None:
        if site.calls("log") == 2:
            (site.runs / "7").write_text("finished:stopped")
        elif site.calls("log") == 3:
            (site.runs / "8").write_text("finished:completed")

    train_on_fleet(site.job(), tick)
    assert site.statuses() == {"7": "finished:stopped", "8": "finished:completed"}


@pytest.mark.parametrize("submitted", [True, False], ids=["the one who submitted it", "another"])
def test_a_viewer_learns_that_its_run_was_stopped(submitted: bool, site: Site) -> None:
    told: list[list[str]] = []
    if not submitted:
        with pytest.raises(RunGoesOnError):
            train_on_fleet(site.job(), raising(TerminatedError, lambda: site.calls("log")))
    logs = site.calls("log") + 1
    with pytest.raises(RunFailed, match="the run was stopped"):
        train_on_fleet(
            site.job(), lambda: told.append(stop_runs(site.directory)) if site.calls("log") == logs else None
        )
    assert told[0] == [f"the run in {site.directory / 'run'}"]
    assert stop_runs(site.directory) == []


def test_a_killed_viewer_leaves_no_process_and_the_run_goes_on(site: Site) -> None:
    imports = "from sofed_flwr.launch.fleet_run import *; from pathlib import *"
    program = f"{imports}; train_on_fleet({site.job()!r}, lambda: None)"
    path = os.pathsep.join([str(site.runs.parent / "bin"), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path}
    code = f"import sys; sys.executable = {sys.executable!r}; {program}"
    viewer = subprocess.Popen([sys.executable, "-c", code], env=environment)
    try:
        wait_for(lambda: site.calls("log"), "the viewer", 60)
    finally:
        viewer.kill()
        viewer.wait()
    wait_for(lambda: not logs_of(site), "the end of its children", 15)
    assert site.statuses() == {"7": "running"}


def logs_of(site: Site) -> list[str]:
    """Commands that are still copying a run's log."""
    found = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout.splitlines()
    return [line for line in found if str(site.runs.parent / "bin" / "flwr") in line]


@pytest.mark.parametrize("command", [["run", "--fleet"], ["stop"]], ids=" ".join)
@pytest.mark.parametrize("name", ["nowhere", "empty", "file"])
def test_a_directory_that_is_no_site_is_refused_and_stays_as_it_is(
    tmp_path: Path, command: list[str], name: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    before = sorted(tmp_path.rglob("*"))
    done = CliRunner().invoke(app, [*command, str(tmp_path / name)])
    assert done.exit_code == 2
    assert done.stderr == f"sofed: {tmp_path / name}: is not a site; make one with sofed provision\n"
    assert sorted(tmp_path.rglob("*")) == before


def test_a_full_disk_does_not_keep_a_run_going(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, *_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    (site.runs / "7").write_text("running")
    monkeypatch.setattr(Path, "touch", full)
    stop_runs(site.directory)
    assert site.statuses() == {"7": "finished:stopped"}


def test_the_list_of_many_runs_is_read_while_flower_writes_it(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe holds 64 KB; Flower writes 900 bytes about each run that the SuperLink ever had."""
    monkeypatch.setattr(flower_commands, "START_SECONDS", 10.0)
    for number in range(100, 1600):
        (site.runs / str(number)).write_text("finished:completed")
    assert stop_runs(site.directory) == []


def test_a_flwr_that_crashes_is_quoted(site: Site, tmp_path: Path) -> None:
    (tmp_path / "bin" / "flwr").write_text("#!/bin/sh\necho 'ImportError: no grpc' >&2\nexit 1\n")
    with pytest.raises(RunFailed, match="ImportError: no grpc"):
        stop_runs(site.directory)


def test_stop_says_what_it_stopped(site: Site) -> None:
    assert CliRunner().invoke(app, ["stop", str(site.directory)]).stdout == "stopped nothing: no run is going on\n"
    (site.runs / "99").write_text("running")
    done = CliRunner().invoke(app, ["stop", str(site.directory)])
    assert (done.exit_code, done.stdout) == (0, "stopped Flower's run 99, which sofed did not start\n")
    assert json.dumps(site.statuses()) == '{"99": "finished:stopped"}'
