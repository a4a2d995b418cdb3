"""The configuration somebody else wrote, in a run directory or in a server's task: read as data, and nothing runs."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from sofed_flwr.analysis.report.read import read_run
from sofed_flwr.build import build_device, check
from sofed_flwr.config.compose import compose
from sofed_flwr.config.plain_yaml import MOST_BYTES, read_yaml
from sofed_flwr.config.schema import RunConfig
from sofed_flwr.core.errors import ConfigError, DamagedFileError

Smoke = Callable[..., RunConfig]
GROUPS = ["dataset", "partition", "encoder", "method", "policy", "strategy", "codec", "evaluation", "tracking"]


def attacked(config: RunConfig, group: str, marker: Path) -> RunConfig:
    """The configuration with a command in the place of one component."""
    return config.model_copy(update={group: {"_target_": "os.system", "command": f"touch {marker}"}})


def keep(config: RunConfig, **changes: Any) -> Path:
    """A run directory with this configuration, changed."""
    assert config.out is not None
    folder = Path(config.out)
    folder.mkdir()
    (folder / "config.yaml").write_text(yaml.safe_dump(config.model_dump() | changes))
    return folder


@pytest.mark.parametrize("group", GROUPS)
def test_a_resumed_run_of_somebody_else_runs_no_command(group: str, smoke: Smoke, tmp_path: Path) -> None:
    """In the resolved configuration, and in the overrides it is composed of again."""
    marker = tmp_path / "ran"
    config = smoke(f"{group}._target_=os.system", f"+{group}.command='touch {marker}'")
    folder = keep(config)
    with pytest.raises(ConfigError, match=rf"{group}\._target_=os\.system"):
        check(compose([f"resume={folder}"]))
    assert not marker.exists()


@pytest.mark.parametrize("group", ["dataset", "partition", "encoder", "method", "policy"])
def test_a_task_of_a_server_runs_no_command(group: str, smoke: Smoke, tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    text = attacked(smoke(), group, marker).to_yaml()
    with pytest.raises(ConfigError, match=rf"{group}\._target_=os\.system"):
        build_device(RunConfig.from_yaml(text), "run", 0)
    assert not marker.exists()


@pytest.mark.parametrize(
    "override",
    [
        "hydra.searchpath=[pkg://imported_by_hydra]",
        "+hydra.searchpath=[pkg://imported_by_hydra]",
        "hydra/launcher=basic",
        "dataset=../../../somewhere",
        "dataset=/somewhere",
        "'dataset=${oc.env:SECRET}'",
        "+dataset@other=../somewhere",
        "scale/encoder=../../somewhere",
        "'scale/encoder=${oc.env:SECRET}'",
        f"rounds={'9' * 5000}",
        f"method.projector={'[' * 3000}{']' * 3000}",
        "somewhere/else=x",
        "=",
        "rounds=1,2",
    ],
)
def test_the_overrides_of_a_file_reach_no_further_than_a_run(
    override: str, smoke: Smoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "imported_by_hydra.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("SECRET", "xyzzy")
    config = smoke()
    folder = keep(config, overrides=[*config.overrides, override])
    with pytest.raises(ConfigError) as refused:
        compose([f"resume={folder}"])
    assert "xyzzy" not in str(refused.value)
    assert "\n" not in str(refused.value)
    assert "imported_by_hydra" not in sys.modules


@pytest.mark.parametrize(
    "override",
    [
        "dataset.seed=${oc.env:SECRET}",
        "dataset.seed='${oc.env:SECRET}'",
        "dataset.seed=${oc.${x}:SECRET}",
        "+x={y:['${oc.env:SECRET}']}",
        "out='${hydra.sweep.dir}'",
        "out=${now:%Y}",
    ],
)
def test_no_environment_variable_is_read_for_a_configuration(
    override: str, smoke: Smoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "31337")
    config = smoke()
    folder = keep(config, overrides=[*config.overrides, override])
    for given in ([f"resume={folder}"], [override]):
        with pytest.raises(ConfigError) as refused:
            compose(given)
        assert "31337" not in str(refused.value)


def test_an_interpolation_of_the_runs_own_keys_still_works() -> None:
    assert compose(["strategy=dp_fixed", "clients=7"]).strategy["clients"] == 7
    assert compose(["buffer=${clients}"]).buffer == 4


BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12)
)
BROKEN = {
    "bomb": (BOMB.encode(), "line 2: aliases are not accepted"),
    "torn": (b"rounds: [1, 2", "line 1: expected ',' or ']'"),
    "tab": (b"rounds:\n\t- 1", "line 2: found character"),
    "binary": (b"\x00\xff\xfe", "is not valid YAML"),
    "another encoding": ("rounds: 1".encode("utf-16-le"), "is not valid YAML"),
    "object": (b"rounds: !!python/object/apply:os.system [ls]", "could not determine a constructor"),
    "odd tag": (b"rounds: !!int ''", "is not valid YAML"),
    "odd date": (b"rounds: 2001-99-99", "is not valid YAML"),
    "huge number": (b"rounds: 0x" + b"f" * 20000, "more than 63 bits"),
    "many digits": (b"rounds: " + b"9" * 20000, "is not valid YAML"),
    "deep": (b"rounds: " + b"[" * 20000, "nested too deeply"),
    "large": (b"x: 1\n" * MOST_BYTES, f"has more than {MOST_BYTES} bytes"),
    "empty": (b"", "holds no keys"),
    "a number": (b"5", "holds no keys"),
    "a list": (b"- 1", "holds no keys"),
    "numbers for keys": (b"1: 2", "config.yaml: "),
    "no configuration": (b"seed: 1", "config.yaml: rounds is missing"),
    "colours": (b'seed: "\\e[2J"', "config.yaml: seed= [2J: input should be a valid integer"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_configuration_is_one_sentence(name: str, tmp_path: Path) -> None:
    content, message = BROKEN[name]
    (tmp_path / "config.yaml").write_bytes(content)
    with pytest.raises(ConfigError) as refused:
        compose([f"resume={tmp_path}"])
    assert message in str(refused.value)
    assert str(refused.value).startswith(f"resume={tmp_path}: config.yaml")
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 500


def test_a_report_unfolds_no_aliases_either(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(BOMB)
    with pytest.raises(DamagedFileError, match="aliases are not accepted"):
        read_run(tmp_path)


def test_a_task_of_a_server_unfolds_no_aliases() -> None:
    with pytest.raises(ConfigError, match="the run's configuration is not valid YAML"):
        RunConfig.from_yaml(BOMB)


def test_equal_values_are_written_without_aliases(smoke: Smoke) -> None:
    shared = [1, 2]
    config = smoke().model_copy(update={"dataset": {"a": shared, "b": shared}})
    assert read_yaml(config.to_yaml().encode(), "x")["dataset"] == {"a": [1, 2], "b": [1, 2]}


def test_a_budget_may_be_changed_when_a_run_is_resumed(smoke: Smoke) -> None:
    folder = keep(smoke("strategy=dp_fixed", "strategy.max_epsilon=5"))
    assert compose([f"resume={folder}", "strategy.max_epsilon=20"]).strategy["max_epsilon"] == 20
    with pytest.raises(ConfigError, match=r"strategy\.noise_multiplier \(was 1.0, is 2\)"):
        compose([f"resume={folder}", "strategy.noise_multiplier=2"])


def test_a_run_without_a_budget_says_so_when_it_is_resumed(smoke: Smoke) -> None:
    folder = keep(smoke())
    with pytest.raises(ConfigError, match=r"^strategy.max_epsilon=20: there is no such key; strategy has no keys$"):
        compose([f"resume={folder}", "strategy.max_epsilon=20"])


def test_force_is_a_word_for_one_command(smoke: Smoke) -> None:
    config = smoke("force=true")
    folder = keep(config, seed=8)
    with pytest.raises(ConfigError, match=r"seed \(was 8, is 0\)"):
        compose([f"resume={folder}"])
    assert compose([f"resume={folder}", "force=true"]).seed == 0


def test_two_faults_are_one_sentence() -> None:
    with pytest.raises(ConfigError, match=r"^policy=lru: there is no such policy"):
        compose(["polcy=fifo", "policy=lru"])


def test_overrides_with_an_open_quote_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"^overrides=dataset.path='x: no closing quotation$"):
        compose("dataset.path='x")


def test_a_configuration_that_is_a_folder_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").mkdir()
    with pytest.raises(ConfigError, match="there is no run to continue"):
        compose([f"resume={tmp_path}"])
