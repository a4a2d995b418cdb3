"""The resolved configuration of a run: what the server composed, `config.yaml` keeps and every device gets.

Plain YAML and pydantic, so a device needs no Hydra to read it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError

from sofed_flwr.config.instantiate import Component, first_error
from sofed_flwr.config.plain_yaml import read_yaml, write_yaml
from sofed_flwr.config.sections import Federation, Heads, Machine, Optimizer, Part, PositiveInt, Section, Stream, Trace
from sofed_flwr.core.app_files import written_by
from sofed_flwr.core.errors import ConfigError


class NoEffectOnResult:
    """Marks a key that changes nothing of what a run computes but its rounding: it is no part of a cell's name."""


@dataclass(frozen=True)
class Resumable:
    """Marks a key that a resumed run may change, or one argument of a component: rounds compute the same.

    A schedule depends on `rounds`, though: `compose.py` knows that exception.
    """

    argument: str | None = None


class RunConfig(Section):
    """A run, resolved. Components stay as their yaml; building them validates their arguments.

    The text below a key is its description, for a section that of its class.
    """

    seed: Annotated[int, Field(ge=0, lt=2**63)]
    """Decides every random choice of the run; the same seed gives the same encoder file."""
    rounds: Annotated[PositiveInt, Resumable()]
    """Communication rounds; more can be added later where the learning rate is constant."""
    clients: PositiveInt
    """Devices that take part."""
    buffer: Annotated[int, Field(ge=2)]
    """N: images in a device's replay buffer, in a segment of its stream and in a batch."""
    workers: Annotated[PositiveInt | None, NoEffectOnResult, Resumable()]
    """Client processes at a time in simulation; null: one per core, at most four per GPU."""
    out: Annotated[str | None, NoEffectOnResult, Resumable()]
    """Run directory; null: outputs/DATE/TIME."""
    resume: Annotated[str | None, NoEffectOnResult, Resumable()]
    """Run directory to continue."""
    force: Annotated[bool, NoEffectOnResult, Resumable()] = False
    """Continue a run with another configuration, too."""
    restart: Annotated[bool, NoEffectOnResult, Resumable()] = False
    """Begin a run again instead of continuing it; its files are kept in earlier-<n>."""
    pretrained: Annotated[str, Field(min_length=1)] | None = None
    """Weights to begin with, on the server's disk: encoder.safetensors, a model directory, others' in safetensors;
    null: random ones."""
    heads: Heads
    optimizer: Optimizer
    stream: Stream
    federation: Federation
    device: Annotated[Machine, NoEffectOnResult]
    trace: Trace | None
    subset: Part
    dataset: Component
    """Where the images come from."""
    partition: Component
    """How the images are dealt to the devices."""
    encoder: Component
    """The network that is trained and taken away."""
    method: Component
    """How a device learns without labels, and what it shares."""
    policy: Component
    """Which images a device keeps in its buffer."""
    strategy: Annotated[Component, Resumable("max_epsilon")]
    """How the server combines the devices' models."""
    codec: Component
    """How a device's upload is encoded."""
    evaluation: Component
    """How the server evaluates the encoder."""
    tracking: Annotated[Component, NoEffectOnResult, Resumable()]
    """Where metrics go beside metrics.jsonl."""
    choices: Annotated[dict[str, str], NoEffectOnResult]
    """Name of the yaml chosen for each group."""
    overrides: Annotated[list[str], NoEffectOnResult, Resumable()]
    """What the user typed."""
    version: Annotated[str, NoEffectOnResult, Resumable()]
    """Of the code that composed this."""

    @classmethod
    def no_effect_on_result(cls) -> set[str]:
        """Keys that do not decide a result."""
        return {name for name, field in cls.model_fields.items() if NoEffectOnResult in field.metadata}

    @classmethod
    def resumable(cls) -> set[str]:
        """Keys that a resumed run may change."""
        return {
            f"{name}.{mark.argument}" if mark.argument else name
            for name, field in cls.model_fields.items()
            for mark in field.metadata
            if isinstance(mark, Resumable)
        }

    @classmethod
    def validated(cls, content: Any) -> RunConfig:
        """Plain data -> configuration, or a sentence about the first wrong key."""
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            raise ConfigError(first_error(error)) from error

    @classmethod
    def from_yaml(cls, text: str | bytes, what: str = "the run's configuration") -> RunConfig:
        """Read untrusted text; `what` is its name in an error message."""
        content = read_yaml(text.encode() if isinstance(text, str) else text, what)
        try:
            return cls.validated(content)
        except ConfigError as error:
            raise ConfigError(f"{what}: {error}{written_by(content.get('version'))}") from error

    def to_yaml(self) -> str:
        """As sent to devices, and kept in `config.yaml`."""
        return write_yaml(self.model_dump())

    @property
    def facts(self) -> dict[str, Any]:
        """The settings that identify a result."""
        names = {
            group: self.choices.get(group, "own") for group in ("method", "policy", "strategy", "dataset", "encoder")
        }
        return {**names, "clients": self.clients, "rounds": self.rounds, "seed": self.seed}

    @property
    def directory(self) -> Path:
        """The run directory, absolute; `config.compose` filled it in."""
        assert self.out is not None
        return Path(self.out)
