"""Stage two for people (paper, sec. III-A): a few labels -> a classifier, and what is known of its worth.

The head is fitted on frozen features; fine-tuning is tried on request, and kept if held-out labels say that it is
better. Test images, where there are any, measure the result and choose nothing.
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from sofed_flwr.classifier import finetune
from sofed_flwr.classifier.assessment import Assessment, assess
from sofed_flwr.classifier.finetune import Network
from sofed_flwr.classifier.head import solve
from sofed_flwr.classifier.labels import Choice, LabelSet, Watch
from sofed_flwr.classifier.model import Classifier, one_thread
from sofed_flwr.classifier.validation import Validation, choose_l2, deal_folds
from sofed_flwr.classifier.warnings import LabelWarning, about_accuracy, about_duplicates, about_encoder, about_few
from sofed_flwr.core.errors import ConfigError
from sofed_flwr.core.records import Features, LabeledImages
from sofed_flwr.encoder import FrozenEncoder
from sofed_flwr.evaluation.collapse import usable
from sofed_flwr.evaluation.features import extract

CHUNK = 2048
"""Images whose features are extracted between two steps of a progress bar."""
SMALL = 1_000_000
"""Parameters up to which fine-tuning runs on one thread.

Measured at 32 x 32 pixels: for ResNet-8 of width 8 (80,000 parameters) a step on two threads took 1.5 times as long as
on one, and 18 times while the cores were busy; for ResNet-18 (11 million) it took 2.3 s instead of 2.7.
"""
DIGITS = 4
"""Of a percentage, after the point: more would be noise."""
FROZEN, FINE_TUNED = "frozen", "fine-tuned"


@dataclass(frozen=True)
class Candidate:
    """A way of training; `validation` is its result on held-out labels, `test` on images that had no part in it."""

    name: str
    network: Network
    validation: Assessment | None
    test: Assessment | None

    @property
    def assessment(self) -> Assessment | None:
        """What to tell of it; None without labels to evaluate it on."""
        return self.test or self.validation


@dataclass(frozen=True)
class Fit:
    """The classifier that was kept, all that were tried, and what a reader must know."""

    classifier: Classifier
    kept: Candidate
    candidates: list[Candidate]
    warnings: list[LabelWarning]


def fit(encoder: FrozenEncoder, labels: LabelSet, choice: Choice, fine_tuning: bool, watch: Watch) -> Fit:
    """Deterministic: encoder, labels and seed decide the weights; of large fine-tuned networks also the threads."""
    data = labels.train.data
    size = data.images.shape[-2:]
    sized = FrozenEncoder(encoder.backbone, {**encoder.facts, "image_size": list(size)}, (size[0], size[1]))
    folds = deal_folds(data.labels, choice.seed)
    with one_thread():  # batches run side by side (`extract`), and sums have one order on any number of cores
        features = _features(sized, data, watch)
        l2, validation = choose_l2(features, len(labels.classes), folds, watch)
        frozen = Network(sized, solve(features, len(labels.classes), l2).as_module())
    tried = [(FROZEN, frozen, validation)]
    if fine_tuning:
        if validation is None:
            raise ConfigError("--finetune: every class has one image; expected more, so that some can be held out")
        with _threads_for(encoder.backbone):
            found = finetune.validate(frozen, data, features, l2, folds, choice.seed, watch)
            tuned = finetune.fine_tune(frozen, data, found, choice.seed, watch)
        beside = Validation(validation.logits, found.validation.folds)
        tried = [(FROZEN, frozen, beside), (FINE_TUNED, tuned, found.validation)]
    candidates = [Candidate(name, network, *_evaluated(network, how, labels, watch)) for name, network, how in tried]
    kept = max(candidates, key=lambda candidate: candidate.validation.correct if candidate.validation else 0)
    warnings = [*about_encoder(encoder), *about_accuracy(kept.assessment), *about_few(labels)]
    warnings += about_duplicates(labels, folds, watch)
    facts = {**_facts(labels, choice, candidates, kept), "l2": l2, "warnings": [text.sentence for text in warnings]}
    return Fit(Classifier(*kept.network, labels.classes, facts), kept, candidates, warnings)


def _threads_for(network: nn.Module) -> AbstractContextManager[None]:
    """What trains it fastest: threads wait for each other at every operation of a small one."""
    small = sum(parameter.numel() for parameter in network.parameters()) <= SMALL
    return one_thread() if small else nullcontext()


def _features(encoder: FrozenEncoder, data: LabeledImages, watch: Watch) -> Features:
    chunks = [slice(start, start + CHUNK) for start in range(0, len(data), CHUNK)]
    parts = [
        extract(encoder.features, LabeledImages(data.images[chunk], data.labels[chunk])).values
        for chunk in watch(chunks, "computing features")
    ]
    values = torch.cat(parts)
    if not usable(values):
        raise ConfigError("the encoder maps images to values that are not finite, so nothing can be learned from it")
    return Features(values, torch.from_numpy(data.labels))


def _evaluated(
    network: Network, validation: Validation | None, labels: LabelSet, watch: Watch
) -> tuple[Assessment | None, Assessment | None]:
    """By held-out labels and by test images, as far as there are any."""
    held_out = test = None
    if validation is not None:
        predicted = validation.logits.argmax(dim=1).numpy()
        held_out = assess(labels.classes, labels.train.data.labels, predicted, validation.folds)
    if labels.test is not None:
        values = network.head(_features(network.encoder, labels.test.data, watch).values)
        test = assess(labels.classes, labels.test.data.labels, values.argmax(dim=1).numpy())
    return held_out, test


def _facts(labels: LabelSet, choice: Choice, candidates: list[Candidate], kept: Candidate) -> dict[str, Any]:
    """For the model card, which is given away: no paths."""
    counts = np.bincount(labels.train.data.labels)
    others = {other.name: _figures(other.assessment) for other in candidates if other is not kept}
    facts = {
        "training": kept.name,
        "labels": len(labels.train.data),
        "labels_per_class": [int(counts.min()), int(counts.max())],
        "labels_from": labels.source,
        **choice.used(int(counts.max()))._asdict(),
        **_figures(kept.assessment),
    }
    return {**facts, "not_kept": others} if others else facts


def _figures(assessment: Assessment | None) -> dict[str, Any]:
    if assessment is None:
        return {}
    return {
        "accuracy": round(assessment.accuracy, DIGITS),
        "interval": [round(bound, DIGITS) for bound in assessment.interval],
        "evaluated_by": assessment.evaluated_by,
        "evaluated_images": assessment.images,
    }
