"""A user's own package, named on the command line or in node config: from there to every process that needs it."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import Result
from flwr.app import Context, RecordDict
from typer.testing import CliRunner

import client_app
from sofed_flwr.build import build_method
from sofed_flwr.cli import main as cli
from sofed_flwr.config.compose import compose
from sofed_flwr.config.schema import RunConfig
from sofed_flwr.core.errors import DeviceError
from sofed_flwr.device.node_config import Node
from sofed_flwr.flower.messages import Task, pack_model, pack_task
from sofed_flwr.launch.simulation import SimulationJob
from tests.support.federation import SMOKE, federate
from tests.support.packages import importable

OWN = ["policy=fifo", "policy._target_=own_package.first.First"]
REFUSED = "policy._target_=own_package.first.First: not in sofed_flwr.policies; if own_package is a package of yours"


@pytest.fixture
def own_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with importable(tmp_path / "packages", monkeypatch) as name:
        yield name


@pytest.mark.usefixtures("_inside_a_run", "own_package")
def test_a_device_builds_what_its_owner_trusts_and_nothing_else(
    smoke: Callable[..., RunConfig], caplog: pytest.LogCaptureFixture
) -> None:
    config = smoke(*OWN, "clients=1", "stream.segments=1")
    task = Task(config.to_yaml(), "run", 1, 0)

    def answer(**node: str | int) -> RecordDict:
        message = pack_task(task, pack_model(build_method(config).shared_state()), node=5, ttl=60)
        content = {"device-id": 0, **node}
        return client_app.app(message, Context(1, 5, content, RecordDict(), {})).content  # type: ignore[arg-type]

    for node, reason in (
        ({}, REFUSED),
        ({"trust": "own_package,nothing_here"}, "trust=nothing_here: no package of this"),
    ):
        with pytest.raises(DeviceError, match=r"^ConfigError in .*; the device's own log says more$"):
            answer(**node)
        assert caplog.messages[-1].startswith(reason)
    assert "shared" in answer(trust=" own_package, ").array_records


def test_a_node_names_packages_with_commas() -> None:
    assert Node.read({"device-id": 0, "trust": "a, b.c ,"}).trusted() == ["a", "b.c"]
    assert Node.read({"device-id": 0}).trusted() == []


@pytest.mark.parametrize("command", [["run"], ["evaluate", "encoder.safetensors"], ["reproduce", "table3_policies"]])
def test_a_package_that_is_none_ends_every_command_in_one_sentence(command: list[str]) -> None:
    done = CliRunner().invoke(cli.app, [*command, "--trust", "no_such_package"])
    assert done.exit_code == 2
    assert done.output == (
        "sofed: trust=no_such_package: no package of this name can be imported; install it or set PYTHONPATH\n"
    )


@pytest.mark.usefixtures("own_package")
def test_a_run_needs_the_word_at_its_start_and_again_when_it_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here in one process; through SuperLink, ServerApp and Ray: `launch/test_wheel.py`."""
    out = tmp_path / "run"
    monkeypatch.setattr("sofed_flwr.launch.run.simulate", simulate_here)

    def sofed(*words: str) -> Result:
        monkeypatch.setenv("SOFED_TRUST", "")  # which a command leaves to its own processes only
        return CliRunner().invoke(cli.app, ["run", *words])

    refused = sofed(*SMOKE, *OWN, f"out={out}")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert refused.stderr.startswith(f"sofed: {REFUSED}")
    assert refused.stderr.count("\n") == 1
    assert not out.exists()

    done = sofed("--trust", "own_package", *SMOKE, *OWN, "rounds=1", f"out={out}")
    assert done.exit_code == 0, done.stderr
    refused = sofed(f"resume={out}", "rounds=2")
    assert refused.exit_code == 2
    assert refused.stderr.startswith(f"sofed: {REFUSED}")
    done = sofed(f"resume={out}", "rounds=2", "--trust", "own_package")
    assert done.exit_code == 0, done.stderr


def simulate_here(job: SimulationJob, tick: Callable[[], None]) -> None:
    config = compose(job.overrides)
    federate(config).finish(config.encoder, config.facts)
