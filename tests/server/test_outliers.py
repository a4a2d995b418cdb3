"""Which of a round's replies is odd, by hand."""

import math

import pytest
import torch

from sofed_flwr.core.records import Update
from sofed_flwr.server.outliers import lower_median, screen, too_long

GLOBAL = {"w": torch.tensor([10.0, 20.0]), "bn.running_mean": torch.zeros(1), "n": torch.tensor(0)}


def moved(device: int, x: float, y: float, statistic: float = 0.0) -> Update:
    way = {"w": torch.tensor([10.0 + x, 20.0 + y]), "bn.running_mean": torch.tensor([statistic]), "n": torch.tensor(9)}
    return Update(device, 1, way)


def test_the_median_of_an_even_number_is_the_lower_one() -> None:
    assert lower_median([7.0]) == 7
    assert lower_median([9.0, 1.0]) == 1
    assert lower_median([3.0, 1.0, 2.0]) == 2
    assert lower_median([1e9, 1.0, 1e9, 2.0]) == 2


def test_too_long_is_a_multiple_of_the_median() -> None:
    assert too_long({0: 1.0, 1: 2.0, 2: 19.0}, limit=10, middle=2) == {}
    assert too_long({0: 1.0, 1: 21.0}, limit=10, middle=2) == {1: "moved the model by 21, over 10 times the median 2"}
    assert too_long({}, limit=10, middle=0) == {}


@pytest.mark.parametrize("malicious", [1, 2, 3])
def test_half_of_the_devices_cannot_lift_the_limit_above_an_honest_length(malicious: int) -> None:
    honest = {device: 1.0 + device / 10 for device in range(malicious)}
    long = {malicious + device: 1e6 for device in range(malicious)}
    assert lower_median((honest | long).values()) == max(honest.values())


@pytest.mark.parametrize("length", [float("inf"), float("nan")])
def test_a_length_that_is_no_number_is_too_long_even_alone(length: float) -> None:
    assert list(too_long({4: length}, limit=10, middle=length)) == [4]


def test_one_of_three_that_points_against_the_others_goes_and_the_one_it_made_look_bad_stays() -> None:
    """Cosines 0.71 (4 and 5), -1 (4 and 6), -0.71 (5 and 6): only 6 is against two of three."""
    crowd = [moved(4, 1, 0), moved(5, 1, 1), moved(6, -1, 0)]
    assert screen(crowd, GLOBAL) == ({6: "points against 2 of the other 2"}, True)
    assert screen(crowd[:2], GLOBAL) == ({}, True)
    assert screen(crowd[1:], GLOBAL) == ({}, False), "one against one is no vote"


def test_two_malicious_of_five_go_however_long_they_are() -> None:
    crowd = [moved(0, 1, 0), moved(1, -1e6, -1e5), moved(2, 1, 1), moved(3, -0.1, -0.1), moved(4, 2, 1)]
    assert sorted(screen(crowd, GLOBAL).outvoted) == [1, 3]


def test_two_identical_malicious_of_five_are_outvoted_though_honest_devices_hardly_agree() -> None:
    """Honest ones at cosines of 0.21 to each other, the malicious ones against their sum: -0.69 to each of them.

    By mean cosines the honest ones would be the odd ones: (2 * 0.21 - 2 * 0.69) / 4 against (1 - 3 * 0.69) / 4.
    """
    axes = torch.eye(3) + 0.1
    honest = [Update(device, 1, {"w": axes[device]}) for device in range(3)]
    malicious = [Update(device, 1, {"w": -axes.sum(dim=0)}) for device in (3, 4)]
    outvoted, settled = screen([*honest, *malicious], {"w": torch.zeros(3)})
    assert (sorted(outvoted), settled) == ([3, 4], True)


def test_half_of_all_is_no_verdict() -> None:
    crowd = [moved(0, 1, 0), moved(1, 1, 1), moved(2, -1, 0), moved(3, -1, 0)]
    assert screen(crowd, GLOBAL) == ({}, False)


def at(device: int, degrees: float) -> Update:
    return moved(device, math.cos(math.radians(degrees)), math.sin(math.radians(degrees)))


def test_two_malicious_that_add_their_votes_to_a_quarrel_of_honest_ones_do_not_settle_it() -> None:
    """Honest at 0, 95 and 50 degrees, the malicious ones both at -85: 95 is outvoted by 0 and them, but 50 and -85 are
    135 degrees apart, so the four that would be left do not agree.
    """
    crowd = [at(0, 0), at(1, 95), at(2, 50), at(3, -85), at(4, -85)]
    assert screen(crowd, GLOBAL) == ({1: "points against 3 of the other 4"}, False)


def test_two_malicious_that_agree_with_half_of_the_honest_ones_by_chance_do_not_settle_it() -> None:
    """Real cosines: the first round of SimCLR, two of five flipped. The third is outvoted, the rest agrees but for
    chance: 0.02 between two of them.
    """
    cosines = torch.tensor(
        [
            [1.0, -0.065, 0.159, 0.071, 0.071],
            [-0.065, 1.0, -0.086, -0.162, -0.162],
            [0.159, -0.086, 1.0, 0.02, 0.02],
            [0.071, -0.162, 0.02, 1.0, 0.9999],
            [0.071, -0.162, 0.02, 0.9999, 1.0],
        ]
    )
    rows = torch.linalg.cholesky(cosines)
    crowd = [Update(device, 1, {"w": row}) for device, row in enumerate(rows)]
    assert screen(crowd, {"w": torch.zeros(5)}) == ({1: "points against 4 of the other 4"}, False)


def test_who_did_not_move_is_against_nobody() -> None:
    crowd = [moved(0, 1, 0), moved(1, 0, 0), moved(2, 1, 1), moved(3, 2, 1)]
    assert screen(crowd, GLOBAL).outvoted == {}


def test_statistics_are_no_direction() -> None:
    """Whoever flips only what it learned is seen, however well its statistics fit."""
    crowd = [moved(0, 1, 0, 1e3), moved(1, 1, 1, 1e3), moved(2, -1, -1, 1e3)]
    assert list(screen(crowd, GLOBAL).outvoted) == [2]


def test_devices_that_agree_on_nothing_are_all_kept() -> None:
    axes = torch.eye(3)
    crowd = [Update(k, 1, {"w": axes[k]}) for k in range(3)]
    assert screen(crowd, {"w": torch.zeros(3)}) == ({}, False)


def test_of_no_replies_nobody_is_odd() -> None:
    assert screen([], GLOBAL) == ({}, True)
