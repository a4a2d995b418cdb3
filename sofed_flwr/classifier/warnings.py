"""What a reader of the accuracy must know: too few labels, perhaps no more than chance, the same images on both sides.

A sentence goes into the model card, which is given away; names of files are for the terminal only.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from sofed_flwr.classifier import duplicates
from sofed_flwr.classifier.assessment import Assessment
from sofed_flwr.classifier.labels import LabelSet, NamedImages, Watch
from sofed_flwr.core.records import Indices, LabeledImages, Labels
from sofed_flwr.encoder import FrozenEncoder

FEW = 5
"""Images of a class; with fewer, not every fold of validation holds one."""
SHOWN = 5


class LabelWarning(NamedTuple):
    """`names` are of files, or of images of a dataset."""

    sentence: str
    names: str = ""


def about_encoder(encoder: FrozenEncoder) -> list[LabelWarning]:
    """One that was fine-tuned may have learned the very images it is evaluated on; its file does not say which."""
    if encoder.facts.get("fine_tuned") is None:
        return []
    sentence = "the encoder was trained with labels; if these images are among them, the accuracy is too high"
    return [LabelWarning(sentence)]


def about_few(labels: LabelSet) -> list[LabelWarning]:
    """Classes by name, the smallest first."""
    counts = np.bincount(labels.train.data.labels, minlength=len(labels.classes))
    few = sorted((int(count), name) for count, name in zip(counts, labels.classes, strict=True) if count < FEW)
    if not few:
        return []
    shown = ", ".join(f"{name} ({count})" for count, name in few[:SHOWN])
    more = f" and {len(few) - SHOWN} more" if len(few) > SHOWN else ""
    return [LabelWarning(f"fewer than {FEW} labels in {len(few)} of {len(counts)} classes: {shown}{more}")]


def about_accuracy(assessment: Assessment | None) -> list[LabelWarning]:
    """No better than chance, or better by less than so few images can show."""
    if assessment is None:
        return [LabelWarning("nothing is known of the accuracy: every class has one image, and there are no others")]
    if assessment.better_than_chance:
        return []
    low, high = assessment.interval
    name, share = assessment.majority
    few = f"{assessment.images} images cannot tell it from chance"
    verdict = few if assessment.accuracy > share else "it is no better than chance"
    return [
        LabelWarning(
            f"the accuracy is {assessment.accuracy:.1f} %, and {verdict}: always answering {name!r} is right for "
            f"{share:.1f} %, which is not below the interval of {low:.1f} to {high:.1f} %"
        )
    ]


def about_duplicates(labels: LabelSet, folds: Sequence[Indices], watch: Watch) -> list[LabelWarning]:
    """Between labels and test images; without those, between the folds of cross-validation."""
    train, test = labels.train, labels.test
    if test is None:
        groups = np.full(len(train.data), len(folds))
        for number, fold in enumerate(folds):
            groups[fold] = number
        return _warnings(train, groups, "folds of cross-validation", watch)
    images, numbers = (
        np.concatenate([getattr(half.data, part) for half in (train, test)]) for part in ("images", "labels")
    )
    both = NamedImages(LabeledImages(images, numbers), [*train.names, *test.names])
    groups = np.repeat([0, 1], [len(train.data), len(test.data)])
    return _warnings(both, groups, "labels and test images", watch)


def _warnings(images: NamedImages, groups: Labels, where: str, watch: Watch) -> list[LabelWarning]:
    found = duplicates.across(images.data.images, groups, watch)
    warnings = []
    for identical, what in ((True, "identical"), (False, "nearly identical")):
        if pairs := [pair for pair in found if pair.identical == identical]:
            first, labels = pairs[0], images.data.labels
            differing = sum(bool(labels[pair.image] != labels[pair.earlier]) for pair in pairs)
            conflict = f" ({differing} with different labels)" if differing else ""
            sentence = f"{what} images across {where}: {len(pairs)}{conflict}; the accuracy may be too high"
            warnings.append(LabelWarning(sentence, f"{images.names[first.image]} and {images.names[first.earlier]}"))
    return warnings
