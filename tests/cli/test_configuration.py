"""What Hydra users expect of a command: --cfg, --help with choices, completion, a suggestion for a wrong word."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
import yaml
from typer.testing import CliRunner

from sofed_flwr.cli.completion import complete_key, complete_override, complete_table
from sofed_flwr.cli.main import app
from sofed_flwr.config.schema import RunConfig
from tests.cli.test_cli import HEAVY, LOADED
from tests.support.federation import ROOT, SMOKE, conf_names


def said(*words: str) -> str:
    done = CliRunner().invoke(app, list(words), terminal_width=120)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_cfg_prints_what_config_yaml_would_hold_and_runs_nothing(
    smoke: Callable[..., RunConfig], tmp_path: Path
) -> None:
    config = smoke("policy=fifo")
    assert said("run", "--cfg", *config.overrides) == config.to_yaml()
    assert not config.directory.exists()
    config.directory.mkdir()
    (config.directory / "config.yaml").write_text(config.to_yaml())
    resumed = RunConfig.from_yaml(said("run", "--cfg", f"resume={config.out}", "rounds=7"))
    assert (resumed.rounds, resumed.choices["policy"], resumed.out) == (7, "fifo", config.out)

    sweep = said("run", "-m", "--cfg", *SMOKE, "seed=3,4", f"out={tmp_path / 'sweep'}")
    assert [job["seed"] for job in yaml.safe_load_all(sweep)] == [3, 4]
    assert "--- # scale=smoke seed=4\n" in sweep
    assert not (tmp_path / "sweep").exists()


def test_the_help_of_run_names_every_choice() -> None:
    words = said("run", "--help").replace(",", " ").split()
    for group in ("policy", "strategy", "experiment", "scale"):
        assert {f"{group}=", *conf_names(group)} <= set(words)


def test_config_explains_and_lists() -> None:
    assert said("config", "stream.stc").startswith("stream.stc\n  Strength of temporal correlation")
    assert "\npolicy=fading_strata: " in said("config")


def test_the_page_of_all_keys_is_current() -> None:
    assert said("config", "--markdown") == (ROOT / "docs" / "configuration.md").read_text(), "make docs writes it anew"


@pytest.mark.parametrize(
    ("words", "suggestion"),
    [
        (["run", "polcy=fifo"], "did you mean policy?"),
        (["run", "policy=importence"], "did you mean policy=importance?"),
        (["run", "optimiser.lr=1"], "did you mean optimizer.lr?"),
        (["run", "policy.segmnts=1"], "did you mean policy.segments?"),
        (["run", "-m", "polcy=fifo,importance"], "did you mean policy?"),
        (["reproduce", "table3_policy", "--scale", "smoke"], "did you mean table3_policies?"),
        (["config", "polcy"], "did you mean policy?"),
        (["repotr"], "'report'"),
        (["run", "--multrun"], "--multirun"),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, list) else "",
)
def test_a_wrong_word_gets_a_suggestion(words: list[str], suggestion: str) -> None:
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2
    assert suggestion in done.stderr


@pytest.mark.parametrize("override", ["policy=lru", "federation.colour=1"])
def test_nothing_is_suggested_where_nothing_is_close(override: str) -> None:
    done = CliRunner().invoke(app, ["run", override])
    assert (done.exit_code, "did you mean" in done.stderr) == (2, False)


@pytest.mark.parametrize(
    ("before", "typed", "offered"),
    [
        ([], "pol", ["policy=", "policy."]),
        ([], "policy=fi", ["policy=fifo"]),
        ([], "optimizer.", ["optimizer.lr=", "optimizer.schedule=", "optimizer.momentum=", "optimizer.weight_decay="]),
        (["seed=1"], "rou", ["rounds="]),
        ([], "method.views.j", ["method.views.jitter="]),
        ([], "policy=fifo,kc", ["policy=fifo,kcenter"]),
        (["policy", "="], "fi", ["fifo"]),  # bash
        (["policy", "="], "fifo,kc", ["fifo,kcenter"]),
        (["tracking"], "", ["none", "tensorboard"]),
        (["seed", "=", "1"], "rou", ["rounds="]),
        (["seed"], "", []),
        ([], "nothing", []),
    ],
)
def test_the_tab_key_offers_groups_choices_and_keys(before: list[str], typed: str, offered: list[str]) -> None:
    context = typer.Context(typer.main.get_command(app))
    context.params = {"overrides": tuple(before)}
    assert complete_override(context, typed) == offered


def test_the_tab_key_knows_what_config_and_reproduce_take() -> None:
    assert complete_key("policy.lazy") == ["policy.lazy_interval"]
    assert complete_table("figure") == ["figure6_discard", "figure7_score_trend"]


def test_a_shell_is_answered_without_loading_what_trains() -> None:
    asked = {"_SOFED_COMPLETE": "complete_bash", "COMP_WORDS": "sofed run policy = fi", "COMP_CWORD": "4"}
    command = [sys.executable, "-c", f"import sys; sys.argv = ['sofed']\n{LOADED}"]
    done = subprocess.run(command, env=os.environ | asked, cwd=ROOT, capture_output=True, text=True, check=True)
    offered, _, packages = done.stdout.partition("loaded:")
    assert offered.split() == ["fifo"]
    assert not {*HEAVY, "pydantic"} & set(packages.split())
