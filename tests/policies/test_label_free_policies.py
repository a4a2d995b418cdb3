"""Policies beyond the paper's: hand-written pools, and what a policy notes of an entry survives a restart."""

from itertools import pairwise

import pytest
import torch

from sofed_flwr.config.instantiate import build
from sofed_flwr.core.records import Pool
from sofed_flwr.device.buffer import Buffer
from sofed_flwr.policies.arrival import arrivals, equal_shares
from sofed_flwr.policies.base import Policy
from sofed_flwr.policies.decayed_reservoir import DecayedReservoir
from sofed_flwr.policies.fading_strata import FadingStrata, beginnings
from sofed_flwr.policies.minred import MinRed, least_redundant
from sofed_flwr.policies.strata import Strata
from tests.policies.test_policies import NAN, PixelScorer, generator, images
from tests.support.federation import compose_once, conf_names


def feed(policy: Policy, buffer: Buffer, *segments: list[int], scorer: PixelScorer | None = None) -> list[int]:
    """The values that the buffer holds after these segments; an image's score is its value."""
    draw = generator()
    for values in segments:
        pool = buffer.pool(images(*values))
        selection = policy.select(pool, min(buffer.capacity, len(pool)), scorer or PixelScorer(), draw)
        buffer.keep(pool, selection)
    return buffer.images[:, 0, 0, 0].tolist()


def test_an_arrival_is_what_was_noted_and_dates_the_new_entries() -> None:
    ages = torch.tensor([3, 1, 0, 0])
    noted = torch.tensor([10.0, 12.0, NAN, NAN], dtype=torch.float64)
    pool = Pool(images(1, 2, 3, 4), torch.zeros(4), ages, {"arrival": noted})
    assert arrivals(pool).tolist() == [10, 12, 13, 13]
    assert arrivals(Pool(pool.images, pool.scores, ages)).tolist() == [0, 2, 3, 3]


def test_strata_share_equally_and_the_newest_gets_the_odd_place() -> None:
    strata = torch.tensor([0.0, 0.0, 0.0, 1.0, 1.0, 1.0])
    scores = torch.tensor([0.1, 0.3, 0.2, 0.5, 0.4, 0.6])
    assert equal_shares(strata, scores, 4, most=2).tolist() == [1, 2, 3, 5]
    assert equal_shares(strata, scores, 3, most=2).tolist() == [1, 3, 5]


def test_a_small_stratum_leaves_its_places_and_an_expired_one_stays_only_without_others() -> None:
    strata = torch.tensor([0.0, 1.0, 2.0, 2.0])
    scores = torch.tensor([0.9, 0.1, 0.2, 0.3])
    assert equal_shares(strata, scores, 3, most=2).tolist() == [1, 2, 3]
    assert equal_shares(strata, scores, 4, most=2).tolist() == [0, 1, 2, 3]


def test_an_image_competes_only_with_those_of_its_stratum() -> None:
    """Two iterations per stratum, two strata, two places: the best of 1 to 4, then the best of 5 to 8."""
    policy, scorer = Strata(segments=2, strata=2, weak_view="flip"), PixelScorer()
    buffer = Buffer(2)
    assert feed(policy, buffer, [40, 10], [30, 20], [5, 6], [7, 8], scorer=scorer) == [40, 8]
    assert feed(policy, buffer, [1, 2], scorer=scorer) == [8, 2], "the first stratum has expired"
    assert sorted(value for asked in scorer.asked for value in asked) == sorted([40, 10, 30, 20, 5, 6, 7, 8, 1, 2]), (
        "each is scored once"
    )


def test_strata_double_in_length_where_two_of_a_length_lie_behind() -> None:
    """Ages 0 and 1: one iteration each; 2 to 5: two; from 6 on: four."""
    assert beginnings(torch.arange(7.0), segments=1, doubling=2).tolist() == [0, 0, 2, 2, 4, 5, 6]
    assert beginnings(torch.arange(9.0), segments=1, doubling=2).tolist() == [0, 0, 0, 2, 4, 4, 6, 7, 8]


def test_in_a_stratum_an_image_counts_by_its_place_in_its_own_segment() -> None:
    """14 is 1.7 deviations above the mean of its segment, 202 is one above its own; raw scores would keep 202."""
    policy = FadingStrata(segments=2, doubling=1, strata=1, weak_view="flip")
    assert feed(policy, Buffer(1), [200, 202], [10, 10, 10, 14]) == [14]
    assert feed(Strata(segments=2, strata=1, weak_view="flip"), Buffer(1), [200, 202], [10, 10, 10, 14]) == [202]


def test_fading_strata_hold_the_last_images_and_the_far_past() -> None:
    """Eight places after 200 iterations: 12 lengths of one stratum would reach back 8,190."""
    buffer = Buffer(8)
    feed(FadingStrata(segments=2, doubling=1, strata=8, weak_view="flip"), buffer, *([[9, 1]] * 200))
    ages = sorted(buffer.ages.tolist())
    assert ages[0] <= 1
    assert ages[-1] > 100
    assert all(later <= 4 * earlier + 8 for earlier, later in pairwise(ages)), "no gap in between"


def test_a_decayed_reservoir_forgets_by_its_horizon() -> None:
    segments = [[number] for number in range(200)]
    short = DecayedReservoir(beta=0, horizon=2, weak_view="flip")
    long = DecayedReservoir(beta=0, horizon=1e9, weak_view="flip")
    assert min(feed(short, Buffer(4), *segments)) > 170
    assert min(feed(long, Buffer(4), *segments)) < 100
    feed(short, Buffer(4), [1], scorer=(scorer := PixelScorer()))
    assert not scorer.asked, "without beta nothing is scored"


def test_the_weight_of_a_score_is_the_odds_of_staying() -> None:
    """Two images, one place, z = -1 and +1: the odds are exp(2 beta) = 7.4 to 1."""
    policy = DecayedReservoir(beta=1, horizon=100, weak_view="flip")
    stayed = 0
    for seed in range(2000):
        pool = Buffer(1).pool(images(10, 30))
        keep = policy.select(pool, 1, PixelScorer(), generator(seed)).keep
        stayed += int(keep[0] == 1)
    assert stayed / 2000 == pytest.approx(7.39 / 8.39, abs=0.03)


def test_of_the_closest_pair_the_lower_score_leaves() -> None:
    similarity = torch.tensor([[1.0, 0.9, 0.1], [0.9, 1.0, 0.2], [0.1, 0.2, 1.0]])
    assert least_redundant(similarity, torch.tensor([0.1, 0.5, 0.0]), 2).tolist() == [1, 2]
    assert least_redundant(similarity, torch.tensor([0.5, 0.1, 0.0]), 2).tolist() == [0, 2]


def test_features_of_another_encoder_are_computed_anew() -> None:
    class Wider(PixelScorer):
        def features(self, images: torch.Tensor) -> torch.Tensor:
            return images[:, 0, 0, :2].float()

    buffer = Buffer(3)
    feed(MinRed(weak_view="flip"), buffer, [1, 2, 3])
    feed(MinRed(weak_view="flip"), buffer, [4], scorer=(wider := Wider()))
    assert wider.asked[-1] == [1, 2, 3, 4]
    assert buffer.columns["features"].shape == (3, 2)


@pytest.mark.parametrize("name", conf_names("policy"))
def test_a_restarted_policy_goes_on_as_if_it_had_not_stopped(name: str) -> None:
    policy: Policy = build(compose_once(f"policy={name}").policy, "policy")
    values = [list(range(number, number + 6)) for number in range(0, 60, 6)]

    def held(restarts: bool) -> list[int]:
        buffer, draw = Buffer(6), generator(3)
        for segment in values:
            if restarts:
                state = buffer.state_dict()
                buffer = Buffer(6)
                buffer.load_state_dict(state)
            pool = buffer.pool(images(*segment))
            buffer.keep(pool, policy.select(pool, 6, PixelScorer(), draw))
        return buffer.images[:, 0, 0, 0].tolist()

    assert held(restarts=True) == held(restarts=False)


@pytest.mark.parametrize(
    "column",
    [torch.zeros(3, dtype=torch.int64), torch.zeros(2), torch.zeros(3, 2, 2), torch.zeros(3, 5000), torch.tensor(1.0)],
    ids=["integers", "short", "three-dimensional", "wide", "a number"],
)
def test_a_column_that_no_policy_notes_is_refused(column: torch.Tensor) -> None:
    buffer = Buffer(3)
    feed(build(compose_once("policy=strata").policy, "policy"), buffer, [1, 2, 3])
    with pytest.raises(ValueError, match="its column arrival is"):
        Buffer(3).load_state_dict(buffer.state_dict() | {"column.arrival": column})


@pytest.mark.parametrize("name", conf_names("policy"))
@pytest.mark.parametrize("value", [NAN, float("inf"), -1e30])
@pytest.mark.parametrize("spoiled", [slice(1), slice(None)], ids=["one row", "all rows"])
def test_every_policy_bears_columns_with_any_numbers(name: str, value: float, spoiled: slice) -> None:
    policy: Policy = build(compose_once(f"policy={name}").policy, "policy")
    buffer = Buffer(4)
    feed(policy, buffer, [1, 2, 3, 4], [5, 6, 7, 8])
    for column in buffer.columns.values():
        column[spoiled] = value
    assert len(set(feed(policy, buffer, [9, 10, 11, 12], [13, 14, 15, 16]))) == 4
