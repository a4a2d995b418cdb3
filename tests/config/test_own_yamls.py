"""`--config-dir`: the user's yamls beside ours, in this process and in the app that Flower packs."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sofed_flwr.cli import main as cli
from sofed_flwr.config.compose import compose
from sofed_flwr.config.instantiate import trust
from sofed_flwr.config.own_yamls import conf, own_yamls
from sofed_flwr.core.errors import ConfigError
from sofed_flwr.launch.app_bundle import app_directory
from tests.support.federation import SMOKE, federate
from tests.support.packages import importable

MINE = "_target_: own_package.first.First\n"
OPTIMIZER = "# @package _global_\noptimizer:\n  lr: 0.5\n"


def write(folder: Path, name: str, text: str) -> Path:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    return folder


@pytest.fixture
def own(tmp_path: Path) -> Path:
    folder = write(tmp_path / "own", "policy/mine.yaml", MINE)
    write(folder, "src/notes.yaml", "a: [")  # the directory may be a project of the user's
    return write(folder, "experiment/mine.yaml", OPTIMIZER)


@pytest.fixture
def _own_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with importable(tmp_path / "packages", monkeypatch):
        yield


def test_own_yamls_are_composed_and_packed_and_gone_afterwards(own: Path) -> None:
    with own_yamls(own):
        config = compose([*SMOKE, "policy=mine", "experiment=mine"])
        joined = conf()
        with app_directory() as app:
            packed = {path.relative_to(app): path.read_bytes() for path in app.rglob("*.yaml")}
    assert (config.policy, config.optimizer.lr) == ({"_target_": "own_package.first.First"}, 0.5)
    ours = {path.relative_to(conf().parent): path.read_bytes() for path in conf().rglob("*.yaml")}
    mine = {Path("conf/policy/mine.yaml"): MINE.encode(), Path("conf/experiment/mine.yaml"): OPTIMIZER.encode()}
    assert packed == ours | mine
    assert not joined.exists()
    with pytest.raises(ConfigError, match="policy=mine: there is no such policy"):
        compose(["policy=mine"])


@pytest.mark.usefixtures("_own_package")
def test_a_resumed_run_is_given_them_again(own: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    arguments = ["policy=mine", f"out={out}", "rounds=1"]
    with own_yamls(own):
        config = compose([*SMOKE, *arguments])
    trust(["own_package"])
    federate(config)
    with pytest.raises(ConfigError, match="policy=mine: there is no such policy"):
        compose([f"resume={out}", "rounds=2"])
    with own_yamls(own):
        assert compose([f"resume={out}", "rounds=2"]).policy == config.policy
    write(own, "policy/mine.yaml", "_target_: own_package.first.first\n")
    with own_yamls(own), pytest.raises(ConfigError, match=r"policy\._target_ \(was own_package\.first\.First, is "):
        compose([f"resume={out}", "rounds=2"])


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("policy/fifo.yaml", MINE, "policy/fifo.yaml has the name of one of ours; choose another"),
        ("scale/dataset/smoke_shapes.yaml", MINE, "scale/dataset/smoke_shapes.yaml has the name of one of ours"),
        ("polices/mine.yaml", MINE, "holds no yaml of a group; expected GROUP/NAME.yaml, GROUP one of "),
        ("policy/mine.yml", MINE, "holds no yaml of a group"),
        ("policy/mine.yaml", "a: [", "policy/mine.yaml is not valid YAML (line 1: "),
        ("policy/mine.yaml", "- a", "policy/mine.yaml holds no keys"),
        ("policy/mine.yaml", "a: &a 1\nb: *a", "aliases are not accepted"),
        ("policy/mine.yaml", "a: 1\na: 2", "duplicate key a"),
        ("policy/mine.yaml", "a: ${", "no viable alternative at input '${'"),
        ("policy/mine.yaml", "defaults: 5", "defaults must be a list"),
        ("policy/mine.yaml", "defaults: [nothing]", "nothing"),
        ("policy/mine.yaml", "a: ${oc.env:HOME}", "functions such as ${oc.env:NAME} are not called"),
    ],
)
def test_what_cannot_be_used_is_one_sentence(name: str, text: str, complaint: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "own", name, text)
    done = CliRunner().invoke(cli.app, ["run", "--config-dir", str(folder), *SMOKE, "policy=mine"])
    assert done.exit_code == 2, done.output
    assert complaint in done.output
    assert done.output.startswith("sofed: ")
    assert done.output.count("\n") == 1


@pytest.mark.parametrize("command", [["run"], ["evaluate", "encoder.safetensors"], ["reproduce", "table3_policies"]])
def test_a_directory_that_is_missing_ends_every_command(command: list[str], tmp_path: Path) -> None:
    done = CliRunner().invoke(cli.app, [*command, "--config-dir", str(tmp_path / "no")])
    assert (done.exit_code, done.output) == (2, f"sofed: --config-dir {tmp_path / 'no'}: there is no such directory\n")
