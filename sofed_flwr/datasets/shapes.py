"""INTERIM."""

from typing import Annotated

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from sofed_flwr.contracts import LabeledImages, Split
from sofed_flwr.rng import numpy_generator

CLASS_NAMES = tuple("abcdefghij")


def render_shapes(count: int, rng: np.random.Generator, size: int = 32) -> LabeledImages:
    labels = rng.permutation(np.arange(count) % 10).astype(np.int64)
    return LabeledImages(rng.integers(0, 255, (count, 3, size, size), dtype=np.uint8), labels)


@dataclass(frozen=True)
class Shapes:
    """`train` and `test` images; `seed` decides all of them, so that every run and machine has the same."""

    train: Annotated[int, Field(ge=10)]
    test: Annotated[int, Field(ge=10)]
    seed: Annotated[int, Field(ge=0)]

    def fingerprint(self) -> str:
        """The arguments, and a version to raise whenever the rendering changes."""
        return f"shapes:{VERSION}:{self.train}:{self.test}:{self.seed}"

    def load(self) -> Split:
        """Train and test images come from generators of their own."""
        train, test = (
            render_shapes(count, numpy_generator(self.seed, f"shapes {half}"))
            for half, count in (("train", self.train), ("test", self.test))
        )
        return Split(train, test)


VERSION = 1
