"""A file of a run says which version wrote it; one that this version cannot read is refused by that name."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from sofed_flwr import __version__
from sofed_flwr.analysis.report.read import read_run
from sofed_flwr.cli import main as cli
from sofed_flwr.config.compose import compose
from sofed_flwr.config.schema import RunConfig
from sofed_flwr.core.errors import ConfigError, DamagedFileError
from sofed_flwr.encoder import load_encoder
from sofed_flwr.storage.generations import read_file, write_file
from tests.support.federation import ROOT, federate

PUBLISHED = sorted((ROOT / "results" / "runs").iterdir())
FIRST_VERSION = [run for run in PUBLISHED if "\nversion: " not in (run / "config.yaml").read_text()]
"""0.1 did not write which it was."""


def changed(config: RunConfig, version: str | None, **changes: Any) -> str:
    """The override that continues this run, whose config.yaml is another version's; None: it does not say of which."""
    content = config.model_dump() | changes | {"version": version}
    if version is None:
        del content["version"]
    config.directory.mkdir()
    (config.directory / "config.yaml").write_text(yaml.safe_dump(content))
    return f"resume={config.directory}"


def test_a_run_directory_has_the_version_that_wrote_it(smoke: Callable[..., RunConfig]) -> None:
    config = smoke("rounds=1")
    server = federate(config)
    server.finish(config.encoder, config.facts, {})
    assert yaml.safe_load((config.directory / "config.yaml").read_text())["version"] == __version__
    assert load_encoder(server.directory.encoder).facts["version"] == __version__


@pytest.mark.parametrize("run", FIRST_VERSION[::8], ids=lambda run: run.name)
def test_a_run_of_the_first_version_is_not_continued_but_reported(run: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        compose([f"resume={run}"])
    assert str(refused.value).startswith(f"resume={run}: config.yaml: ")
    assert str(refused.value).endswith(f"; it was written by an earlier version than 0.2, this is {__version__}")
    assert "\n" not in str(refused.value)


def test_every_published_run_can_be_read() -> None:
    assert all(read_run(run).choices["method"] for run in PUBLISHED)


def test_the_published_runs_are_drawn(tmp_path: Path) -> None:
    command = ["report", *map(str, PUBLISHED[:2]), "--out", str(tmp_path / "report.html")]
    assert CliRunner().invoke(cli.app, command).exit_code == 0
    assert PUBLISHED[0].name in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    ("version", "writer"),
    [(None, "an earlier version than 0.2"), ("0.9.1", "version 0.9.1"), ("x" * 1000, f"version {'x' * 30}")],
)
def test_an_unreadable_configuration_names_its_writer(
    version: str | None, writer: str, smoke: Callable[..., RunConfig]
) -> None:
    end = f"; it was written by {writer}, this is {__version__}"
    with pytest.raises(ConfigError, match=rf"config\.yaml: .*{re.escape(end)}$"):
        compose([changed(smoke(), version, novel=1)])


def test_another_version_that_wrote_the_same_keys_is_continued(smoke: Callable[..., RunConfig]) -> None:
    assert compose([changed(smoke(), "0.2.99")]).version == __version__


def test_an_encoder_file_that_cannot_be_used_names_its_writer_and_an_old_one_can(
    smoke: Callable[..., RunConfig],
) -> None:
    config = smoke("rounds=1")
    server = federate(config)
    server.finish(config.encoder, config.facts, {})
    file = server.directory.encoder
    state, meta = read_file(file)
    write_file(file, state, {key: value for key, value in meta.items() if key != "version"})
    assert "version" not in load_encoder(file).facts
    moved = {"_target_": "sofed_flwr.encoders.resnet"}
    write_file(file, state, meta | {"architecture": config.encoder | moved, "version": "0.9.1"})
    with pytest.raises(DamagedFileError, match=r"sofed_flwr\.encoders\.resnet.*; it was written by version 0\.9\.1, "):
        load_encoder(file)
