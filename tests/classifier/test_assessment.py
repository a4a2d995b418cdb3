"""Accuracy, interval, confusion matrix and per-class figures, computed by hand; scikit-learn is the second opinion."""

import numpy as np
import pytest
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

from sofed_flwr.classifier.assessment import assess, most_confused, precision_and_recall, wilson
from sofed_flwr.classifier.tables import confusion, per_class

CLASSES = ("ant", "bee", "cat")
TRUE = np.array([0, 0, 0, 0, 1, 1, 2, 2])
PREDICTED = np.array([0, 0, 1, 1, 1, 0, 2, 0])


def test_wilson_by_hand() -> None:
    """8 of 10, z = 1.96: (0.8 + 0.19207 ± 1.96 sqrt(0.016 + 0.0096037)) / 1.38415."""
    assert wilson(8, 10) == pytest.approx((49.016, 94.331), abs=1e-3)
    assert wilson(0, 10) == pytest.approx((0, 27.753), abs=1e-3), "has a width where nothing is right"
    assert wilson(10, 10) == pytest.approx((72.247, 100), abs=1e-3)


def test_figures_by_hand_and_by_scikit_learn() -> None:
    """Of four ants two are taken for bees; of two bees and of two cats one each for an ant."""
    evaluated = assess(CLASSES, TRUE, PREDICTED)
    assert (
        evaluated.confusion.tolist() == [[2, 2, 0], [1, 1, 0], [1, 0, 1]] == confusion_matrix(TRUE, PREDICTED).tolist()
    )
    assert (evaluated.images, evaluated.correct, evaluated.accuracy, evaluated.folds) == (8, 4, 50, ())
    assert evaluated.majority == ("ant", 50)
    precision, recall = precision_and_recall(evaluated.confusion)
    assert precision.tolist() == pytest.approx([50, 100 / 3, 100])
    assert recall.tolist() == pytest.approx([50, 50, 50])
    sklearn = precision_recall_fscore_support(TRUE, PREDICTED)
    assert np.allclose([precision, recall], 100 * np.array(sklearn[:2]))
    assert most_confused(evaluated.confusion, 2) == [(0, 1, 2), (1, 0, 1)]


def test_only_images_in_folds_count() -> None:
    """Fold {0, 2}: one of two; fold {4, 6, 7}: two of three; the other three images were never held out."""
    evaluated = assess(CLASSES, TRUE, PREDICTED, [np.array([0, 2]), np.array([4, 6, 7])])
    assert evaluated.folds == pytest.approx((50, 200 / 3))
    assert (evaluated.correct, evaluated.images) == (3, 5)


@pytest.mark.parametrize(
    ("correct", "better"),
    [(55, False), (60, True)],  # of 100, half of them ants: intervals from 45.2 and from 50.2
)
def test_chance_is_the_share_of_the_largest_class(correct: int, better: bool) -> None:
    true = np.repeat([0, 1], 50)
    predicted = np.where(np.arange(100) < correct, true, 1 - true)
    assert assess(("ant", "bee"), true, predicted).better_than_chance == better


def test_a_class_never_predicted_has_no_precision_and_many_classes_are_shown_as_pairs() -> None:
    evaluated = assess(CLASSES, TRUE, np.zeros(8, int))
    assert per_class(evaluated)[1][1:] == [
        ["ant", "4", "50.0", "100.0"],
        ["bee", "2", "", "0.0"],
        ["cat", "2", "", "0.0"],
    ]
    assert confusion(evaluated)[1] == [
        ["", "0", "1", "2"],
        ["ant 0", "4", ".", "."],
        ["bee 1", "2", ".", "."],
        ["cat 2", "2", ".", "."],
    ]
    many = assess([f"class {n}" for n in range(30)], np.arange(30), np.roll(np.arange(30), 1))
    assert confusion(many)[1][:2] == [["class", "taken for", "images"], ["class 0", "class 29", "1"]]
    assert len(per_class(many)[1]) == 21
