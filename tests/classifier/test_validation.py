"""The head, its folded standardisation, the folds and the choice of l2."""

from collections import Counter

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits
from torch import Tensor
from torch.nn import functional

from sofed_flwr.classifier.head import DEFAULT_L2, solve
from sofed_flwr.classifier.validation import GRID, choose_l2, cross_validate, deal_folds
from sofed_flwr.core.records import Features
from sofed_flwr.evaluation.linear import fit_logistic, moments
from tests.support.models import unwatched


def blobs(counts: list[int], distance: float, d: int = 12) -> Features:
    """Gaussian classes, with features of very different mean and spread, one of them constant."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    centres = distance * torch.randn(len(counts), d, generator=generator)
    values = centres[labels] + torch.randn(len(labels), d, generator=generator)
    values = values * torch.logspace(-3, 2, d) + torch.linspace(-50, 50, d)
    values[:, 3] = 7.1
    return Features(values, labels)


def test_the_folded_head_is_the_unfolded_one() -> None:
    features = blobs([20, 15, 30], distance=1.0)
    x = features.values.double()
    mean, scale = moments(x)
    weight, bias = fit_logistic((x - mean) / scale, features.labels, 3, 0.01, 500)
    unfolded = functional.linear((x - mean) / scale, weight, bias)
    head = solve(features, 3, 0.01)
    assert torch.allclose(head.logits(features.values), unfolded, atol=1e-5)
    ordinary = Features(torch.randn(50, 8, generator=torch.Generator().manual_seed(1)) + 1, torch.arange(50) % 3)
    solved = solve(ordinary, 3, 0.01)
    assert torch.allclose(solved.as_module()(ordinary.values).double(), solved.logits(ordinary.values), atol=1e-5)


@pytest.mark.parametrize("counts", [[10, 10, 10], [10, 7, 1, 3], [2, 2], [100, 6, 5]])
def test_folds_are_stratified_and_hold_every_image_once(counts: list[int]) -> None:
    labels = np.repeat(np.arange(len(counts)), counts)
    folds = deal_folds(labels, seed=0)
    held_out = np.sort(np.concatenate(folds))
    lonely = [label for label, count in enumerate(counts) if count == 1]
    assert held_out.tolist() == [image for image, label in enumerate(labels) if label not in lonely]
    for label, count in enumerate(counts):
        shares = [int((labels[fold] == label).sum()) for fold in folds]
        assert max(shares) - min(shares) <= 1
        assert max(shares) < count or count == 1, "every class can be learned without any fold"
    assert max(map(len, folds)) - min(map(len, folds)) <= 1
    if min(counts) >= 5:
        ours = Counter(tuple(np.bincount(labels[fold], minlength=len(counts)).tolist()) for fold in folds)
        splits = StratifiedKFold(5, shuffle=True, random_state=0).split(labels, labels)
        assert ours == Counter(tuple(np.bincount(labels[fold], minlength=len(counts)).tolist()) for _, fold in splits)
    again, other = deal_folds(labels, seed=0), deal_folds(labels, seed=1)
    assert all(map(np.array_equal, folds, again))
    assert sum(counts) < 5 or not all(map(np.array_equal, folds, other))


def test_no_image_is_held_out_where_every_class_has_one() -> None:
    features = blobs([1, 1, 1], distance=1.0)
    assert deal_folds(features.labels.numpy(), seed=0) == []
    assert choose_l2(features, 3, [], unwatched) == (DEFAULT_L2, None)


def test_held_out_predictions_are_those_of_scikit_learn() -> None:
    features = blobs([25, 25, 25], distance=0.5)
    folds = deal_folds(features.labels.numpy(), seed=3)
    found = cross_validate(features, 3, folds, [0.1], unwatched)[0.1]
    model = make_pipeline(StandardScaler(), LogisticRegression(C=1 / (0.1 * 60), tol=1e-8, max_iter=2000))
    splits = [(np.setdiff1d(np.arange(75), fold), fold) for fold in folds]
    with threadpool_limits(1):
        expected = cross_val_predict(
            model, features.values.numpy(), features.labels.numpy(), cv=splits, method="predict_proba"
        )
    assert np.allclose(found.logits.softmax(dim=1).numpy(), expected, atol=1e-3)


def chosen(counts: list[int], distance: float) -> float:
    features = blobs(counts, distance)
    return choose_l2(features, len(counts), deal_folds(features.labels.numpy(), seed=0), unwatched)[0]


def test_l2_is_chosen_from_five_labels_per_class_on() -> None:
    assert chosen([30] * 3, distance=0.0) == max(GRID), "what cannot be told apart"
    assert chosen([30] * 3, distance=3.0) < 0.1, "what is far apart"
    assert chosen([4, 30, 30], distance=0.0) == DEFAULT_L2
    assert chosen([5, 30, 30], distance=0.0) == max(GRID)


def test_an_image_that_was_never_held_out_is_not_evaluated() -> None:
    features = blobs([5, 1, 5], distance=1.0)
    found = cross_validate(features, 3, deal_folds(features.labels.numpy(), seed=0), [1.0], unwatched)[1.0]
    assert found.evaluated.tolist() == [0, 1, 2, 3, 4, 6, 7, 8, 9, 10]
    assert bool(found.logits[5].isnan().all())
    assert np.isfinite(found.loss(features.labels))


def test_a_constant_feature_has_no_weight() -> None:
    weight: Tensor = solve(blobs([10, 10, 10], distance=1.0), 3, DEFAULT_L2).weight
    assert weight[:, 3].abs().max() == 0
