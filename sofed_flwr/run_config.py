"""The resolved configuration of a run: what the server composed, `config.yaml` keeps and every device gets.

Plain YAML and pydantic, so a device needs no Hydra to read it.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sofed_flwr.component import Component, ConfigError, first_complaint

PositiveInt = Annotated[int, Field(ge=1)]


class Section(BaseModel):
    """A part of the configuration; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Heads(Section):
    """Widths of projector and predictor after their input."""

    hidden: PositiveInt
    output: PositiveInt


class Optimizer(Section):
    """SGD's numbers; with `cosine` the learning rate falls from round to round, towards 0 after the last one."""

    lr: Annotated[float, Field(gt=0)]
    schedule: Literal["constant", "cosine"]
    momentum: Annotated[float, Field(ge=0, lt=1)]
    weight_decay: Annotated[float, Field(ge=0)]

    def learning_rate(self, round_number: int, rounds: int) -> float:
        """Of a whole round: rounds count from 1, and a round has one learning rate."""
        done = (round_number - 1) / rounds
        return self.lr * (1 + math.cos(math.pi * done)) / 2 if self.schedule == "cosine" else self.lr


class Stream(Section):
    """Temporal correlation, segments per round (None: one pass), and the size of a real device's images."""

    stc: PositiveInt
    segments: PositiveInt | None
    image_size: Annotated[int, Field(ge=8)] = 32


class Federation(Section):
    """When a round begins and ends, and when it counts."""

    everyone: Annotated[float, Field(ge=0)] = 600
    wait: Annotated[float, Field(gt=0)]
    ask: PositiveInt | None = None
    enough: PositiveInt | None = None
    deadline: Annotated[float, Field(gt=0)]
    quorum: PositiveInt
    patience: PositiveInt
    norm_limit: Annotated[float, Field(gt=1)]


class Machine(Section):
    """What differs from machine to machine."""

    threads: PositiveInt
    accelerator: Literal["auto", "cpu", "cuda"]


class Part(Section):
    """How many images of the dataset to use, classes in proportion (None: all)."""

    train: PositiveInt | None = None
    test: PositiveInt | None = None


class Trace(Section):
    """Which device's scores to watch, in which round, for how many iterations."""

    device: Annotated[int, Field(ge=0)]
    round: PositiveInt
    iterations: PositiveInt


class RunConfig(Section):
    """A run, resolved. Components stay as their yaml: whoever builds them validates their arguments."""

    seed: Annotated[int, Field(ge=0)]
    rounds: PositiveInt
    clients: PositiveInt
    buffer: Annotated[int, Field(ge=2)]
    workers: PositiveInt | None
    out: str | None
    resume: str | None
    force: bool = False
    heads: Heads
    optimizer: Optimizer
    stream: Stream
    federation: Federation
    device: Machine
    trace: Trace | None
    subset: Part
    dataset: Component
    partition: Component
    encoder: Component
    method: Component
    policy: Component
    strategy: Component
    evaluation: Component
    tracking: Component
    choices: dict[str, str]
    overrides: list[str]

    @classmethod
    def validated(cls, content: Any) -> RunConfig:
        """Plain data -> configuration, or a sentence about the first wrong key."""
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            raise ConfigError(first_complaint(error)) from error

    @classmethod
    def from_yaml(cls, text: str) -> RunConfig:
        """What `to_yaml` wrote."""
        return cls.validated(yaml.safe_load(text))

    def to_yaml(self) -> str:
        """As sent to devices, and kept in `config.yaml`."""
        return str(yaml.safe_dump(self.model_dump(), sort_keys=False))

    @property
    def facts(self) -> dict[str, Any]:
        """What a reader of the results wants to know first."""
        names = {group: self.choices[group] for group in ("method", "policy", "strategy", "dataset", "encoder")}
        return {**names, "clients": self.clients, "rounds": self.rounds, "seed": self.seed}

    @property
    def directory(self) -> Path:
        """The run directory, absolute; `config.compose` filled it in."""
        assert self.out is not None
        return Path(self.out)
