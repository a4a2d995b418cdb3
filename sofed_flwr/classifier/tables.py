"""What `sofed fit` prints: rows of text, headings first."""

import math

import numpy as np

from sofed_flwr.classifier.assessment import Assessment, most_confused, precision_and_recall
from sofed_flwr.classifier.fit import Fit

MATRIX = 20
"""Classes of which a confusion matrix, or all lines of a table, can still be read."""
LONGEST = 20
"""Characters of a class's name in a table."""

Rows = list[list[str]]


def accuracies(fitted: Fit) -> tuple[str, Rows]:
    """Title and one row per way of training and way of evaluating it; the spread is over the folds."""
    rows = [["training", "evaluated by", "images", "accuracy (%)", "95 % interval", "over folds"]]
    for candidate in fitted.candidates:
        for assessment in (candidate.validation, candidate.test):
            if assessment is not None:
                rows.append([candidate.name, assessment.evaluated_by, str(assessment.images), *_figures(assessment)])
    return f"kept: {fitted.kept.name}" if len(fitted.candidates) > 1 else "", rows


def confusion(assessment: Assessment) -> tuple[str, Rows]:
    """Title and rows: the matrix, or of many classes the pairs that are confused most."""
    names = [_short(name) for name in assessment.classes]
    if len(names) > MATRIX:
        pairs = most_confused(assessment.confusion, MATRIX)
        rows = [[names[true], names[predicted], str(images)] for true, predicted, images in pairs]
        return "most confused", [["class", "taken for", "images"], *rows]
    numbers = [str(number) for number in range(len(names))]
    rows = [
        [name if name == number else f"{name} {number}", *(str(count) if count else "." for count in counts)]
        for number, name, counts in zip(numbers, names, assessment.confusion.tolist(), strict=True)
    ]
    return "rows: class, columns: predicted", [["", *numbers], *rows]


def per_class(assessment: Assessment) -> tuple[str, Rows]:
    """Title and rows; of many classes those with the lowest recall."""
    precision, recall = precision_and_recall(assessment.confusion)
    counts = assessment.confusion.sum(axis=1)
    order = np.argsort(recall, kind="stable")[:MATRIX] if len(counts) > MATRIX else np.arange(len(counts))
    rows = [
        [_short(assessment.classes[place]), str(counts[place]), _percent(precision[place]), _percent(recall[place])]
        for place in order
    ]
    title = f"the {MATRIX} classes with the lowest recall" if len(counts) > MATRIX else ""
    return title, [["class", "images", "precision (%)", "recall (%)"], *rows]


def _figures(assessment: Assessment) -> list[str]:
    low, high = assessment.interval
    folds = len(assessment.folds)
    spread = f"± {np.std(assessment.folds, ddof=1):.1f} ({folds})" if folds > 1 else f"({folds})" if folds else ""
    return [f"{assessment.accuracy:.1f}", f"{low:.1f} to {high:.1f}", spread]


def _percent(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.1f}"


def _short(name: str) -> str:
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"
