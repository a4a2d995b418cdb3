"""The configuration: Hydra overrides -> one validated, resolved `RunConfig`. Only this file knows Hydra.

The server composes and validates once and sends the resolved YAML with each message; a device parses that. So there is
one source of truth, and a device needs no Hydra.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sofed_flwr.component import Component, ConfigError, first_complaint

CONF = Path(__file__).resolve().parent.parent / "conf"
RESUMABLE = {"rounds", "workers", "out", "resume", "overrides"}
"""Keys a resumed run may change: none of them changes what a round computes."""

PositiveInt = Annotated[int, Field(ge=1)]


class Section(BaseModel):
    """A part of the configuration; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Optimizer(Section):
    """SGD's numbers."""

    lr: Annotated[float, Field(gt=0)]
    momentum: Annotated[float, Field(ge=0, lt=1)]
    weight_decay: Annotated[float, Field(ge=0)]


class Stream(Section):
    """Temporal correlation, and segments per round (None: one pass)."""

    stc: PositiveInt
    segments: PositiveInt | None


class Federation(Section):
    """When a round ends, and when it counts."""

    deadline: Annotated[float, Field(gt=0)]
    wait: Annotated[float, Field(gt=0)]
    quorum: PositiveInt
    patience: PositiveInt
    norm_limit: Annotated[float, Field(gt=1)]


class Machine(Section):
    """What differs from machine to machine."""

    threads: PositiveInt


class RunConfig(Section):
    """A run, resolved. Components stay as their yaml: who builds them validates their arguments."""

    seed: Annotated[int, Field(ge=0)]
    rounds: PositiveInt
    clients: PositiveInt
    buffer: Annotated[int, Field(ge=2)]
    workers: PositiveInt | None
    out: str | None
    resume: str | None
    optimizer: Optimizer
    stream: Stream
    federation: Federation
    device: Machine
    dataset: Component
    partition: Component
    encoder: Component
    method: Component
    policy: Component
    strategy: Component
    evaluation: Component
    choices: dict[str, str]
    overrides: list[str]

    @classmethod
    def from_yaml(cls, text: str) -> RunConfig:
        """What `to_yaml` wrote."""
        return _validated(yaml.safe_load(text))

    def to_yaml(self) -> str:
        """As sent to devices, and kept in `config.yaml`."""
        return str(yaml.safe_dump(self.model_dump(), sort_keys=False))

    @property
    def facts(self) -> dict[str, Any]:
        """What a reader of the results wants to know first."""
        names = {group: self.choices[group] for group in ("method", "policy", "dataset", "encoder")}
        return {**names, "clients": self.clients, "rounds": self.rounds, "seed": self.seed}

    @property
    def directory(self) -> Path:
        """The run directory, absolute; `compose` filled it in."""
        assert self.out is not None
        return Path(self.out)


def default_out() -> Path:
    """Where a run goes that was not told where to go."""
    return Path(datetime.now().strftime("outputs/%Y-%m-%d/%H-%M-%S"))


def compose(overrides: str | Sequence[str]) -> RunConfig:
    """Overrides -> configuration; with `resume=DIR` those of DIR come first and must not be contradicted."""
    given = shlex.split(overrides) if isinstance(overrides, str) else list(overrides)
    config = _compose(given)
    if config.resume is None:
        return config.model_copy(update={"out": str(_absolute(config.out or default_out()))})
    folder = _absolute(config.resume)
    file = folder / "config.yaml"
    if not file.is_file():
        raise ConfigError(f"resume={config.resume}: there is no run to continue, {file.name} is missing")
    earlier = RunConfig.from_yaml(file.read_text())
    config = _compose(_merged(earlier.overrides, given))
    _refuse_other(earlier, config)
    return config.model_copy(update={"out": str(folder), "resume": str(folder)})


def sweep(overrides: Sequence[str]) -> list[list[str]]:
    """`a=1,2 b=3` -> one list of overrides per combination."""
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        parsed = OverridesParser.create().parse_overrides(list(overrides))
        return [list(job) for batch in BasicSweeper.split_arguments(parsed, max_batch_size=None) for job in batch]
    except HydraException as error:
        raise ConfigError(_one_line(error)) from error


def _compose(overrides: list[str]) -> RunConfig:
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        with initialize_config_dir(config_dir=str(CONF), version_base="1.3"):
            composed = hydra_compose("config", overrides=overrides, return_hydra_config=True)
        choices = {group: name for group, name in composed.hydra.runtime.choices.items() if name and "/" not in group}
        own = OmegaConf.masked_copy(composed, [str(key) for key in composed if key != "hydra"])
        content: Any = OmegaConf.to_container(own, resolve=True, throw_on_missing=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(_one_line(error)) from error
    return _validated(content | {"choices": choices, "overrides": overrides})


def _merged(earlier: Sequence[str], later: Sequence[str]) -> list[str]:
    """The later override of a key replaces the earlier one: Hydra refuses to choose a group's component twice."""
    return list({override.partition("=")[0]: override for override in [*earlier, *later]}.values())


def _validated(content: Any) -> RunConfig:
    try:
        return RunConfig.model_validate(content)
    except ValidationError as error:
        raise ConfigError(first_complaint(error)) from error


def _refuse_other(earlier: RunConfig, config: RunConfig) -> None:
    before, now = _flat(earlier.model_dump()), _flat(config.model_dump())
    differing = [
        f"{key} (was {before.get(key)}, is {now.get(key)})"
        for key in sorted(before.keys() | now.keys())
        if key.split(".")[0] not in RESUMABLE and before.get(key) != now.get(key)
    ]
    if differing:
        raise ConfigError(f"resume={config.resume}: the run has another configuration: {', '.join(differing)}")


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


def _absolute(path: str | Path) -> Path:
    return Path(path).expanduser().resolve()


def _one_line(error: Exception) -> str:
    """Hydra's message without its advice on Hydra's own syntax."""
    noise = ("full_key:", "object_type=", "To append", "Config search path", "provider=", "See http")
    lines = (line.strip() for line in str(error).splitlines())
    return " ".join(line for line in lines if line and not line.startswith(noise))
