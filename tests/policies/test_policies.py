"""Which images stay: hand-written pools of a few entries, and a contract for every policy."""

import pytest
import torch
from torch import Tensor

from sofed_flwr.config.instantiate import build
from sofed_flwr.core.records import Pool, Selection
from sofed_flwr.device.buffer import Buffer
from sofed_flwr.policies.base import Policy
from sofed_flwr.policies.fifo import FIFO
from sofed_flwr.policies.importance import Importance
from sofed_flwr.policies.kcenter import greedy_centers
from sofed_flwr.policies.random_replacement import RandomReplacement
from sofed_flwr.policies.reservoir import Reservoir
from tests.support.federation import compose_once, conf_names

NAN = float("nan")


class PixelScorer:
    """An image's score is its first pixel / 100, its feature that pixel; remembers what it was asked to score."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []

    def score(self, images: Tensor, weak_view: str) -> Tensor:
        values = images[:, 0, 0, 0]
        self.asked.append(values.tolist())
        return values / 100

    def features(self, images: Tensor) -> Tensor:
        return images[:, 0, 0, :1].float()

    def score_with_features(self, images: Tensor, weak_view: str) -> tuple[Tensor, Tensor]:
        return self.score(images, weak_view), self.features(images)


def images(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.uint8).reshape(-1, 1, 1, 1).expand(-1, 3, 2, 2)


def pool(values: list[int], scores: list[float], ages: list[int]) -> Pool:
    return Pool(images(*values), torch.tensor(scores), torch.tensor(ages))


def importance(interval: int | None, on_global: str = "keep") -> Importance:
    return Importance(lazy_interval=interval, weak_view="flip", on_global=on_global)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def kept(policy: Policy, from_pool: Pool, capacity: int, scorer: PixelScorer | None = None, seed: int = 0) -> list[int]:
    selection = policy.select(from_pool, capacity, scorer or PixelScorer(), generator(seed))
    return from_pool.images[selection.keep, 0, 0, 0].tolist()


def test_importance_keeps_the_highest_scores_of_buffer_and_segment() -> None:
    candidates = pool([90, 10, 50, 70], [0.9, 0.1, NAN, NAN], [2, 2, 0, 0])
    assert kept(importance(None), candidates, 2) == [90, 70]


def test_lazy_scoring_computes_a_score_at_age_0_and_then_at_multiples_of_the_interval() -> None:
    """The paper's example: T = 5, so an image that arrives at t is scored at t and at t + 5, not in between."""
    buffer, scorer, policy = Buffer(1), PixelScorer(), importance(5)
    for iteration in range(11):
        candidates = buffer.pool(images(200 if iteration == 0 else 1))
        buffer.keep(candidates, policy.select(candidates, 1, scorer, generator()))
    times_scored = [iteration for iteration, asked in enumerate(scorer.asked) if 200 in asked]
    assert times_scored == [0, 5, 10]


def test_a_lazy_score_decides_until_it_is_renewed() -> None:
    stale = pool([10, 50], [0.9, NAN], [1, 0])
    assert kept(importance(4), stale, 1) == [10]
    assert kept(importance(1), stale, 1) == [50]


def test_rescoring_counts_buffer_entries_only() -> None:
    candidates = pool([1, 2, 3, 4], [0.1, 0.2, NAN, NAN], [4, 3, 0, 0])
    assert importance(4).select(candidates, 2, PixelScorer(), generator()).rescored == 1
    assert importance(None).select(candidates, 2, PixelScorer(), generator()).rescored == 2


def test_an_image_whose_score_is_not_finite_leaves_first() -> None:
    class Broken(PixelScorer):
        def score(self, images: Tensor, weak_view: str) -> Tensor:
            return torch.tensor([NAN, 0.1, float("inf")])

    candidates = pool([1, 2, 3], [NAN] * 3, [0, 0, 0])
    assert kept(importance(4), candidates, 1, Broken()) == [2]


def test_an_entry_beyond_its_age_leaves_whatever_its_score() -> None:
    candidates = pool([90, 80, 10, 20], [0.9, 0.8, NAN, NAN], [4, 3, 0, 0])
    capped = Importance(lazy_interval=None, weak_view="flip", on_global="keep", max_age=3)
    assert kept(capped, candidates, 2) == [80, 20]
    assert kept(capped, candidates, 4) == [90, 80, 10, 20], "nothing better has come"


@pytest.mark.parametrize(
    ("on_global", "same_run", "forgotten"), [("keep", True, False), ("keep", False, True), ("rescore", True, True)]
)
def test_on_global_says_whether_scores_outlive_the_model_they_came_from(
    on_global: str, same_run: bool, forgotten: bool
) -> None:
    carried = importance(4, on_global).carry_over(torch.tensor([0.5]), same_run)
    assert bool(carried.isnan()) == forgotten


def test_fifo_keeps_the_newest_in_order_of_arrival() -> None:
    assert kept(FIFO(), pool([1, 2, 3, 4], [NAN] * 4, [3, 1, 0, 0]), 3) == [2, 3, 4]
    assert kept(FIFO(), pool([1, 2, 3, 4], [NAN] * 4, [1, 1, 0, 0]), 2) == [3, 4]


def test_random_replacement_keeps_each_candidate_equally_often() -> None:
    counts = torch.zeros(6)
    candidates = pool(list(range(6)), [NAN] * 6, [1, 1, 1, 0, 0, 0])
    for seed in range(3000):
        counts[kept(RandomReplacement(), candidates, 3, seed=seed)] += 1
    assert (counts / 3000 - 0.5).abs().max() < 0.05


def test_a_reservoir_is_uniform_over_everything_seen() -> None:
    """Ten images in segments of two through a reservoir of two: each ends in it with probability 2/10."""
    counts = torch.zeros(10)
    for seed in range(3000):
        buffer, draw = Buffer(2), generator(seed)
        for start in range(0, 10, 2):
            candidates = buffer.pool(images(start, start + 1))
            buffer.keep(candidates, Reservoir().select(candidates, 2, PixelScorer(), draw))
        counts[buffer.images[:, 0, 0, 0].long()] += 1
    assert (counts / 3000 - 0.2).abs().max() < 0.03


def test_a_reservoir_takes_no_other_policys_score_for_its_key() -> None:
    """A device keeps its buffer from run to run: scores above 1 would never leave among keys below it."""
    candidates = pool([1, 2, 3, 4], [2.0, 2.0, NAN, NAN], [5, 5, 0, 0])
    assert len({tuple(kept(Reservoir(), candidates, 2, seed=seed)) for seed in range(100)}) == 6, "every pair"


def test_k_center_takes_the_farthest_from_all_chosen() -> None:
    line = torch.tensor([[0.0], [1.0], [10.0], [4.0]])
    assert greedy_centers(line, 3, start=0).tolist() == [0, 2, 3]


def test_k_center_covers_at_most_twice_as_badly_as_the_best_choice() -> None:
    points = torch.rand(10, 2, generator=generator(1))
    distances = torch.cdist(points, points)
    greedy = distances[greedy_centers(points, 3, start=0)].min(dim=0).values.max()
    triples = torch.combinations(torch.arange(10), 3)
    best = min(distances[triple].min(dim=0).values.max() for triple in triples)
    assert greedy <= 2 * best


def test_k_center_never_chooses_an_entry_twice_even_among_copies() -> None:
    assert sorted(greedy_centers(torch.zeros(5, 2), 5, start=3).tolist()) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("name", conf_names("policy"))
def test_every_policy_fills_the_buffer_repeatably_from_distinct_entries(name: str) -> None:
    check_contract(build(compose_once(f"policy={name}").policy, "policy"))


def check_contract(policy: Policy) -> None:
    """What every policy keeps to, whoever wrote it."""
    candidates = pool(list(range(20)), [0.5] * 10 + [NAN] * 10, [1] * 10 + [0] * 10)

    def choose() -> Selection:
        selection: Selection = policy.select(candidates, 10, PixelScorer(), generator(5))
        return selection

    first, second = choose(), choose()
    assert len(first.keep.unique()) == 10
    assert torch.equal(first.keep, second.keep)
    assert first.scores.shape == candidates.scores.shape
    assert policy.carry_over(torch.tensor([0.3]), True).shape == (1,)
