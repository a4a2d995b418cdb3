"""How a row of a table differs from the first one that was run: paired by seed, with a 95 % interval.

Two rows of one seed share data order, initial weights and label subsets, so their difference varies less than either.
"""

from collections.abc import Mapping
from math import sqrt
from statistics import mean, stdev
from typing import NamedTuple

STUDENT_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""Quantiles at 97.5 % for 1 to 9 degrees of freedom; beyond, the last one errs on the safe side."""


class Difference(NamedTuple):
    """Mean of the differences, and half the width of the interval; None for a single seed, which has none."""

    mean: float
    margin: float | None

    def __str__(self) -> str:
        return f"{self.mean:+.1f}" if self.margin is None else f"{self.mean:+.1f} ± {self.margin:.1f}"


def paired_difference(row: Mapping[int, float], first: Mapping[int, float]) -> Difference | None:
    """Values by seed; seeds that one of the two lacks do not count, and without a common one there is no difference."""
    differences = [row[seed] - first[seed] for seed in sorted(row.keys() & first.keys())]
    if not differences:
        return None
    count = len(differences)
    if count == 1:
        return Difference(differences[0], None)
    return Difference(
        mean(differences), STUDENT_T[min(count - 1, len(STUDENT_T)) - 1] * stdev(differences) / sqrt(count)
    )
