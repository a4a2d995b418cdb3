"""Who is odd among the replies of a round, by hand."""

import torch

from sofed_flwr.contracts import Update
from sofed_flwr.jury import against_the_others, too_long

GLOBAL = {"w": torch.tensor([10.0, 20.0]), "bn.running_mean": torch.zeros(1), "n": torch.tensor(0)}


def moved(device: int, x: float, y: float, statistic: float = 0.0) -> Update:
    way = {"w": torch.tensor([10.0 + x, 20.0 + y]), "bn.running_mean": torch.tensor([statistic]), "n": torch.tensor(9)}
    return Update(device, 1, way)


def test_too_long_is_a_multiple_of_the_median_and_two_are_no_jury() -> None:
    assert too_long({0: 1.0, 1: 2.0, 2: 19.0}, limit=10) == {}
    assert too_long({0: 1.0, 1: 2.0, 2: 21.0}, limit=10) == {2: "moved the model by 21, over 10 times the median 2"}
    assert too_long({0: 1.0, 1: 21.0}, limit=10) == {}


def test_the_worst_of_three_goes_and_the_one_it_made_look_bad_stays() -> None:
    """Mean cosines are (0.71 - 1) / 2 = -0.15, (0.71 - 0.71) / 2 = 0 and (-1 - 0.71) / 2 = -0.85."""
    crowd = [moved(4, 1, 0), moved(5, 1, 1), moved(6, -1, 0)]
    assert against_the_others(crowd, GLOBAL) == {6: "points against the others: mean cosine -0.85"}
    assert against_the_others(crowd[:2], GLOBAL) == against_the_others(crowd[1:], GLOBAL) == {}


def test_two_liars_of_five_go_however_loud_they_are() -> None:
    crowd = [moved(0, 1, 0), moved(1, -1e6, -1e5), moved(2, 1, 1), moved(3, -0.1, -0.1), moved(4, 2, 1)]
    assert sorted(against_the_others(crowd, GLOBAL)) == [1, 3]


def test_who_did_not_move_is_against_nobody() -> None:
    crowd = [moved(0, 1, 0), moved(1, 0, 0), moved(2, 1, 1), moved(3, 2, 1)]
    assert against_the_others(crowd, GLOBAL) == {}


def test_statistics_are_no_direction() -> None:
    """Whoever flips only what it learned is seen, however well its statistics fit."""
    crowd = [moved(0, 1, 0, 1e3), moved(1, 1, 1, 1e3), moved(2, -1, -1, 1e3)]
    assert list(against_the_others(crowd, GLOBAL)) == [2]


def test_devices_that_agree_on_nothing_are_all_kept_if_none_is_opposed() -> None:
    axes = torch.eye(3)
    crowd = [Update(k, 1, {"w": axes[k]}) for k in range(3)]
    assert against_the_others(crowd, {"w": torch.zeros(3)}) == {}
