"""The parts of a run's configuration that are no components; `schema.py` puts them together.

A section's docstring and the text below a key are what `sofed config KEY` and docs/configuration.md show.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

PositiveInt = Annotated[int, Field(ge=1)]
Width = Annotated[int, Field(ge=1, le=65536)]
Ratio = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Section(BaseModel):
    """A part of the configuration; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Heads(Section):
    """Projector and predictor, the layers after the encoder that only training uses."""

    hidden: Width
    """Width of the hidden layer of projector and predictor."""
    output: Width
    """Width of their output."""


class Optimizer(Section):
    """SGD on a device."""

    lr: Annotated[float, Field(gt=0)]
    """Learning rate; one step per segment."""
    schedule: Literal["constant", "cosine"]
    """Learning rate over rounds; cosine falls from round to round, towards 0 after the last one."""
    momentum: Annotated[float, Field(ge=0, lt=1)]
    """Momentum of SGD."""
    weight_decay: Annotated[float, Field(ge=0)]
    """Weight decay of SGD."""

    def learning_rate(self, round_number: int, rounds: int) -> float:
        """Of a whole round: rounds count from 1, and a round has one learning rate."""
        done = (round_number - 1) / rounds
        return self.lr * (1 + math.cos(math.pi * done)) / 2 if self.schedule == "cosine" else self.lr


class Stream(Section):
    """What a device reads: a temporally correlated stream of images, which starts over at its end."""

    stc: PositiveInt
    """Strength of temporal correlation: consecutive images of one class."""
    segments: PositiveInt | None
    """Segments per round (the velocity v); null: one pass over the device's images."""
    image_size: Annotated[int, Field(ge=8)] = 32
    """Images of a real device become image_size x image_size pixels."""


class Federation(Section):
    """When a round begins and ends, and when it counts."""

    first_round_wait_s: Annotated[float, Field(ge=0)] = 600
    """Seconds that the first round waits for all devices; then, and later, quorum devices are enough."""
    quorum_wait_s: Annotated[float, Field(gt=0)]
    """Seconds that a round waits for quorum devices; then the run stops; committed rounds are safe."""
    sample: PositiveInt | None = None
    """Devices that get a task in a round, drawn by the seed; null: all that are connected."""
    stop_at_replies: PositiveInt | None = None
    """Replies that end a round at once (sample more than you need); null: wait for all."""
    round_deadline_s: Annotated[float, Field(gt=0)]
    """Seconds that a round waits for replies."""
    quorum: PositiveInt
    """Replies that a round needs; with fewer, the global model stays as it is."""
    max_failed_rounds: PositiveInt
    """Failed rounds in a row before the run stops."""
    max_norm_ratio: Annotated[float, Field(gt=1, allow_inf_nan=False)]
    """A reply is dropped if it moved the model by more than this many times the usual length: the lower median of the
    replies and of the last rounds."""
    clip_norm_ratio: Ratio | None = None
    """Replies are clipped to this many times the usual length instead of being dropped for it, and dropped if they
    point against the others; null: not clipped."""


class Machine(Section):
    """What differs from machine to machine."""

    threads: PositiveInt
    """Threads of a simulated device's training."""
    accelerator: Literal["auto", "cpu", "cuda"]
    """Where devices train; auto: cuda where torch finds it, else cpu."""


class Part(Section):
    """How much of the dataset to use."""

    train: PositiveInt | None = None
    """Training images, classes in proportion; null: all."""
    test: PositiveInt | None = None
    """Test images, classes in proportion; null: all."""


class Trace(Section):
    """Record one device's scores in one round: trace={device:0,round:5,iterations:20}; null: none."""

    device: Annotated[int, Field(ge=0)]
    """Number of the device, from 0."""
    round: PositiveInt
    """Round in which its scores are recorded."""
    iterations: PositiveInt
    """Iterations of that round."""
