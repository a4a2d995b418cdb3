"""Diversity in numbers that can be counted by hand."""

import pytest
import torch

from sofed_flwr.evaluation.diversity import effective_classes, vendi_score


def test_equally_frequent_classes_are_counted_and_rare_ones_count_less() -> None:
    assert effective_classes(torch.tensor([0, 0, 5, 5, 7, 7])) == pytest.approx(3)
    assert effective_classes(torch.tensor([4, 4, 4])) == pytest.approx(1)
    # entropy of 3/4 and 1/4: 0.5623
    assert effective_classes(torch.tensor([1, 1, 1, 2])) == pytest.approx(1.7548, abs=1e-4)


def test_copies_are_one_image_and_orthogonal_features_are_all_different() -> None:
    assert vendi_score(torch.ones(5, 3)) == pytest.approx(1)
    assert vendi_score(torch.eye(4) * 7) == pytest.approx(4)
    assert vendi_score(torch.eye(2).repeat_interleave(3, dim=0)) == pytest.approx(2)
