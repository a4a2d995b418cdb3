"""Paired differences, by hand."""

import pytest

from sofed_flwr.analysis.reproduce.differences import paired_difference


def test_the_interval_is_students_over_the_seeds_both_have() -> None:
    """Differences 1, 2, 3: mean 2, deviation 1, and 4.303 / sqrt(3) = 2.484."""
    difference = paired_difference({0: 11.0, 1: 22.0, 2: 33.0, 7: 99.0}, {0: 10.0, 1: 20.0, 2: 30.0})
    assert difference is not None
    assert difference.mean == pytest.approx(2)
    assert difference.margin == pytest.approx(2.484, abs=1e-3)
    assert str(difference) == "+2.0 ± 2.5"


def test_one_seed_has_no_interval_and_none_in_common_no_difference() -> None:
    assert str(paired_difference({3: 1.0}, {3: 2.5})) == "-1.5"
    assert paired_difference({0: 1.0}, {1: 1.0}) is None
