"""The second stage: features, kNN, linear probe. Oracles are lightly (kNN, collapse) and scikit-learn (logistic)."""

import math
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
import torch
import yaml
from hydra.utils import instantiate
from lightly.utils.benchmarking.knn import knn_predict as lightly_knn_predict
from lightly.utils.debug import std_of_l2_normalized
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits
from torch import Tensor, nn
from torch.nn import functional

from sofed_flwr.core.records import Features, LabeledImages
from sofed_flwr.evaluation.base import Evaluator, accuracy
from sofed_flwr.evaluation.collapse import feature_std
from sofed_flwr.evaluation.features import extract
from sofed_flwr.evaluation.knn import KNN, knn_predict
from sofed_flwr.evaluation.linear import LinearProbe, fit_logistic, moments, stratified
from tests.support.federation import ROOT

CONF = ROOT / "conf" / "evaluation" / "default.yaml"


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def gaussian(n: int, d: int, seed: int = 0) -> Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed))


def gratings(n: int, seed: int = 0) -> LabeledImages:
    """Ten classes (5 orientations x 2 frequencies, one tint each) with random phase, place, contrast and noise."""
    rng = np.random.RandomState(seed)
    labels = rng.randint(0, 10, n)
    tint = np.random.RandomState(99).uniform(0.2, 1.0, (10, 3))[labels] + rng.normal(0, 0.3, (n, 3))
    angle = np.pi * (labels % 5) / 5 + rng.normal(0, 0.12, n)
    frequency = np.where(labels < 5, 0.7, 1.3) * np.exp(rng.normal(0, 0.12, n))
    y, x = np.mgrid[:16, :16]
    along = np.cos(angle)[:, None, None] * x + np.sin(angle)[:, None, None] * y
    wave = np.sin(frequency[:, None, None] * along + rng.uniform(0, 2 * np.pi, n)[:, None, None])
    centre = rng.uniform(5, 11, (2, n, 1, 1))
    blob = wave * np.exp(-((x - centre[0]) ** 2 + (y - centre[1]) ** 2) / 50)
    pixels = rng.uniform(80, 170, (n, 1, 1, 1)) + 80 * tint[:, :, None, None] * blob[:, None]
    pixels += rng.normal(0, 2, pixels.shape)
    return LabeledImages(pixels.clip(0, 255).astype(np.uint8), labels.astype(np.int64))


def small_convnet() -> nn.Sequential:
    torch.manual_seed(0)
    widths = (3, 16, 16, 128)
    rows = [
        (nn.Conv2d(i, o, 3, stride=1 if i == 3 else 2, padding=1), nn.BatchNorm2d(o, momentum=None), nn.ReLU())
        for i, o in pairwise(widths)
    ]
    nn.init.constant_(rows[-1][1].bias, -1.5)  # makes the last ReLU sparse
    return nn.Sequential(*(layer for row in rows for layer in row), nn.AdaptiveAvgPool2d(1), nn.Flatten()).train()


@pytest.fixture(scope="module")
def realistic() -> tuple[Features, Features]:
    """128-d features of an untrained conv net: correlated dimensions, some ReLU zeros, useful but not separable."""
    net, data = small_convnet(), gratings(5000)
    with torch.no_grad():
        net(torch.from_numpy(data.images[:500]).float() / 255)
        net.eval()
        features = extract(lambda x: net(x.float() / 255), data)
    return Features(features.values[:3000], features.labels[:3000]), Features(
        features.values[3000:], features.labels[3000:]
    )


# --- accuracy and collapse -------------------------------------------------------------------------------------------


def test_accuracy_is_in_percent() -> None:
    assert accuracy(torch.tensor([0, 1, 2, 2]), torch.tensor([0, 1, 2, 0])) == 75.0


def test_feature_std_is_lightlys_times_sqrt_d() -> None:
    values = gaussian(500, 64) + 0.5
    assert feature_std(values) == pytest.approx(std_of_l2_normalized(values).item() * 8, rel=1e-6)


def test_feature_std_by_hand() -> None:
    # normalised: (1,0), (-1,0); std with n-1: sqrt(2) and 0; mean sqrt(2)/2; times sqrt(2) = 1
    assert feature_std(torch.tensor([[3.0, 0.0], [-5.0, 0.0]])) == pytest.approx(1.0)


def test_feature_std_is_one_when_healthy_and_zero_when_collapsed() -> None:
    healthy = gaussian(2000, 128)
    assert feature_std(healthy) == pytest.approx(1.0, abs=0.02)
    assert feature_std(healthy.abs()) == pytest.approx(math.sqrt(1 - 2 / math.pi), abs=0.02)
    assert feature_std(torch.ones(100, 128)) == pytest.approx(0.0, abs=1e-6)


# --- kNN -------------------------------------------------------------------------------------------------------------


def test_knn_of_four_vectors_by_hand() -> None:
    bank = torch.tensor([[1.0, 0.0, 0.0], [2.0, 0.0, 2.0], [0.0, 3.0, 0.0], [0.0, 0.0, -1.0]])
    labels = torch.tensor([0, 1, 2, 3])
    queries = torch.tensor([[5.0, 0.0, 1.0], [0.0, 0.2, 0.1], [0.0, 0.0, 4.0], [0.0, 1.0, -1.0]])
    # cosines to the bank: (.98, .83, 0, -.20), (0, .32, .89, -.45), (0, .71, 0, -1), (0, -.5, .71, .71); the tie
    # .71 = .71 goes to the lower class
    assert knn_predict(queries, bank, labels, classes=4, k=4, temperature=0.1).tolist() == [0, 2, 1, 2]


def test_knn_temperature_decides_between_one_close_and_two_fair_neighbours() -> None:
    bank = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.8, -0.6]])  # cosines 1, .8, .8 to the query
    labels, query = torch.tensor([0, 1, 1]), torch.tensor([[1.0, 0.0]])
    # exp(1/T) against 2 exp(.8/T): equal at T = .2/ln 2 = .289
    assert knn_predict(query, bank, labels, 2, k=3, temperature=0.28) == 0
    assert knn_predict(query, bank, labels, 2, k=3, temperature=0.30) == 1
    assert knn_predict(query, bank, labels, 2, k=1, temperature=0.30) == 0


@pytest.mark.parametrize(("k", "temperature"), [(1, 0.1), (20, 0.07), (200, 0.1), (1000, 0.5)])
def test_knn_equals_lightly(k: int, temperature: float) -> None:
    bank, queries = gaussian(1000, 16), gaussian(300, 16, seed=1)
    labels = torch.arange(1000) % 7
    expected = lightly_knn_predict(
        functional.normalize(queries, dim=1), functional.normalize(bank, dim=1).T, labels, 7, k, temperature
    )
    assert torch.equal(knn_predict(queries, bank, labels, 7, k, temperature), expected[:, 0])


def test_knn_in_blocks_equals_knn_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    train = Features(gaussian(90, 8), torch.arange(90) % 3)
    test = Features(gaussian(50, 8, seed=1), torch.arange(50) % 3)
    at_once = list(KNN(k=20).run(train, test))
    monkeypatch.setattr("sofed_flwr.evaluation.knn.SIMILARITIES", 90 * 7)
    assert list(KNN(k=20).run(train, test)) == at_once


def test_knn_with_fewer_images_than_k_uses_them_all() -> None:
    train = Features(torch.eye(3), torch.arange(3))
    assert list(KNN(k=200).run(train, train)) == [("knn", 100.0)]


def test_knn_survives_a_tiny_temperature() -> None:
    train = Features(torch.eye(3), torch.arange(3))
    assert list(KNN(temperature=1e-4).run(train, train)) == [("knn", 100.0)]


# --- label subsets ---------------------------------------------------------------------------------------------------

LABELS = torch.tensor([0] * 250 + [1] * 120 + [4] * 3)


@pytest.mark.parametrize(
    ("fraction", "counts"), [(0.01, [2, 1, 1]), (0.1, [25, 12, 1]), (0.5, [125, 60, 2]), (1.0, [250, 120, 3])]
)
def test_a_subset_holds_the_fraction_of_every_class_and_never_none(fraction: float, counts: list[int]) -> None:
    indices = stratified(LABELS, fraction, seed=0)
    assert torch.unique(LABELS[indices], return_counts=True)[1].tolist() == counts
    assert len(indices.unique()) == len(indices) == sum(counts)


def test_a_subset_is_fixed_by_its_seed() -> None:
    assert torch.equal(stratified(LABELS, 0.1, seed=0), stratified(LABELS, 0.1, seed=0))
    assert not torch.equal(stratified(LABELS, 0.1, seed=0), stratified(LABELS, 0.1, seed=1))


def test_a_subset_is_the_same_on_every_machine() -> None:
    # RandomState(0).permutation(30) begins 2 28 13 10 26 24 27: the first two of each class mod 3
    assert stratified(torch.arange(30) % 3, 0.2, seed=0).tolist() == [2, 13, 24, 26, 27, 28]


def test_a_subset_ignores_the_global_generators() -> None:
    first = stratified(LABELS, 0.1, seed=3)
    np.random.seed(7)
    torch.manual_seed(7)
    assert torch.equal(stratified(LABELS, 0.1, seed=3), first)


def test_more_labels_of_one_seed_include_the_fewer() -> None:
    assert set(stratified(LABELS, 0.01, 2).tolist()) < set(stratified(LABELS, 0.1, 2).tolist())


# --- linear probe ----------------------------------------------------------------------------------------------------


def test_moments_by_hand_and_a_constant_dimension_is_not_divided() -> None:
    x = torch.tensor([[1.0, 0.1, 0.0], [3.0, 0.1, 0.0]], dtype=torch.float64)
    mean, scale = moments(x)
    assert mean.tolist() == pytest.approx([2.0, 0.1, 0.0])
    assert scale.tolist() == [1.0, 1.0, 1.0]


def test_rounding_of_a_constant_does_not_become_a_feature() -> None:
    almost = torch.tensor([1.0, 1.0, 1.0 + 2**-23]).double()[:, None]
    assert moments(almost)[1].tolist() == [1.0]


def sklearn_fit(x: np.ndarray, y: np.ndarray, l2: float) -> LogisticRegression:
    with threadpool_limits(1):  # scikit-learn's own BLAS threads took ten times longer beside another process
        return LogisticRegression(C=1 / (l2 * len(y)), max_iter=20000, tol=1e-6).fit(x, y)


def test_weights_equal_scikit_learns() -> None:
    x = gaussian(300, 5).double()
    y = (x @ gaussian(5, 4, seed=1).double() + gaussian(300, 4, seed=2)).argmax(dim=1)
    weight, bias = fit_logistic(x, y, classes=4, l2=0.01, max_iterations=500)
    expected = sklearn_fit(x.numpy(), y.numpy(), l2=0.01)
    # the bias is free, so only its differences between classes are defined
    assert weight.numpy() == pytest.approx(expected.coef_, abs=2e-3)
    assert (bias - bias.mean()).numpy() == pytest.approx(expected.intercept_ - expected.intercept_.mean(), abs=2e-3)


def test_the_gradient_of_the_objective_vanishes_at_the_fit() -> None:
    x, y = gaussian(60, 3).double(), torch.arange(60) % 3
    weight, bias = fit_logistic(x, y, classes=3, l2=0.1, max_iterations=500)
    residual = (functional.linear(x, weight, bias).softmax(dim=1) - functional.one_hot(y, 3)) / 60
    assert (residual.T @ x + 0.1 * weight).abs().max() < 1e-5
    assert residual.sum(dim=0).abs().max() < 1e-5


@pytest.mark.parametrize("labels", [200, 3000])
def test_accuracy_is_within_half_a_point_of_scikit_learns(realistic: tuple[Features, Features], labels: int) -> None:
    train, test = realistic
    few = Features(train.values[:labels], train.labels[:labels])
    scaler = StandardScaler().fit(few.values.double().numpy())
    oracle = sklearn_fit(scaler.transform(few.values.double().numpy()), few.labels.numpy(), l2=1e-3)
    expected = 100 * oracle.score(scaler.transform(test.values.double().numpy()), test.labels.numpy())
    [(name, value)] = LinearProbe(fractions=(1.0,)).run(few, test)
    assert name == "linear_1.0"
    assert value == pytest.approx(expected, abs=0.5)
    assert 30 < value < 98


def test_more_labels_help_and_the_names_are_those_of_the_summary(realistic: tuple[Features, Features]) -> None:
    results = dict(LinearProbe().run(*realistic))
    assert list(results) == ["linear_0.01", "linear_0.1", "linear_1.0"]
    assert results["linear_0.01"] < results["linear_0.1"] < results["linear_1.0"]


def test_a_fraction_is_the_mean_over_its_label_seeds(realistic: tuple[Features, Features]) -> None:
    train, test = realistic
    singles = []
    for seed in range(3):
        i = stratified(train.labels, 0.05, seed)
        singles += dict(LinearProbe(fractions=(1.0,)).run(Features(train.values[i], train.labels[i]), test)).values()
    [(_, mean)] = LinearProbe(fractions=(0.05,), label_seeds=3).run(train, test)
    assert len(set(singles)) > 1
    assert mean == pytest.approx(sum(singles) / 3)


@pytest.mark.parametrize("evaluator", [KNN(k=20), LinearProbe()], ids=["knn", "linear"])
class TestEveryEvaluator:
    def test_gives_the_same_values_twice_and_needs_no_gradients(
        self, evaluator: Evaluator, realistic: tuple[Features, Features]
    ) -> None:
        first = list(evaluator.run(*realistic))
        with torch.no_grad():
            assert list(evaluator.run(*realistic)) == first

    def test_counts_a_class_that_is_absent_from_train_as_wrong(self, evaluator: Evaluator) -> None:
        corners = torch.eye(4) * 3
        train = Features(corners[[0, 1, 2]].repeat(5, 1), torch.tensor([0, 2, 5]).repeat(5))
        test = Features(corners, torch.tensor([0, 2, 5, 9]))
        assert {value for _, value in evaluator.run(train, test)} == {75.0}

    def test_a_single_class_is_always_predicted(self, evaluator: Evaluator) -> None:
        train = Features(gaussian(10, 4), torch.full((10,), 3))
        test = Features(gaussian(4, 4, seed=1), torch.tensor([3, 3, 0, 3]))
        assert {value for _, value in evaluator.run(train, test)} == {75.0}

    @pytest.mark.parametrize("value", [1.0, math.nan], ids=["collapsed", "diverged"])
    def test_useless_features_give_chance(self, evaluator: Evaluator, value: float) -> None:
        features = Features(torch.full((100, 8), value), torch.arange(100) % 10)
        assert {accuracy for _, accuracy in evaluator.run(features, features)} == {10.0}


# --- configuration ---------------------------------------------------------------------------------------------------


def test_the_yaml_builds_the_defaults() -> None:
    config = yaml.safe_load(CONF.read_text())
    assert config["every"] == 10
    assert instantiate(config["knn"]) == KNN()
    assert instantiate(config["linear"]) == LinearProbe()


@pytest.mark.parametrize(
    ("build", "arguments", "message"),
    [
        (KNN, {"k": 0}, "k\n"),
        (KNN, {"temperature": 0}, "temperature\n"),
        (KNN, {"neighbours": 5}, "neighbours\n"),
        (LinearProbe, {"fractions": [0.0]}, r"fractions\.0\n"),
        (LinearProbe, {"fractions": [0.1, 1.5]}, r"fractions\.1\n"),
        (LinearProbe, {"label_seeds": 0}, "label_seeds\n"),
        (LinearProbe, {"l2": 0}, "l2\n"),
        (LinearProbe, {"max_iterations": 0}, "max_iterations\n"),
    ],
)
def test_a_bad_value_is_refused_by_name(build: type, arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(**arguments)
