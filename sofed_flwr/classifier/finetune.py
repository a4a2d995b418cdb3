"""Fine-tuning: the whole network is trained on the labels, starting as the frozen classifier.

The head begins as the fitted one, not at random: the first gradients of a random one destroy the features (Kumar et
al., arXiv 2202.10054). BatchNorm keeps the statistics of pretraining and moves its weights only: batches of a few
labelled images estimate statistics badly, and so the network that is trained is the one that is used. How long to train
is read off images that were held out; then all labels are trained on for as long. By then the network is far too sure
of itself, so its head is divided by the temperature at which the held-out labels are likeliest (Guo et al.,
arXiv 1706.04599): that changes no answer, but makes probabilities that mean something.
"""

import math
from collections.abc import Iterator
from copy import deepcopy
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from sofed_flwr.classifier.head import solve
from sofed_flwr.classifier.labels import Watch
from sofed_flwr.classifier.validation import Validation
from sofed_flwr.core import rng
from sofed_flwr.core.records import Features, Indices, LabeledImages
from sofed_flwr.encoder import FrozenEncoder
from sofed_flwr.evaluation.features import extract
from sofed_flwr.views.training import TrainingViews

BATCH = 64
EPOCHS = 30
FEWEST_STEPS = 300
LEARNING_RATE = 1e-3
WEIGHT_DECAY = 1e-2
STAGES = 5
"""Equal parts of a training, after each of which the network is evaluated."""
ENOUGH = 500
"""Held-out images by which a number of stages can be chosen; of many labels, one fold is enough."""
VIEWS = TrainingViews(
    crop_scale=(0.5, 1.0), flip=0.5, brightness=0.2, contrast=0.2, saturation=0.2, hue=0.05, jitter=0.8, gray=0.0
)
"""Milder than those of pretraining: the class has to stay visible."""


class Network(NamedTuple):
    """A backbone and its head."""

    encoder: FrozenEncoder
    head: nn.Linear

    def logits(self, data: LabeledImages) -> Tensor:
        """(n, classes)."""
        with torch.no_grad():
            return self.head(extract(self.encoder.features, data).values).double()  # type: ignore[no-any-return]


class FineTuning(NamedTuple):
    """How all labels are trained on: for how many stages, and by what the head is divided; and what showed that."""

    stages: int
    temperature: float
    validation: Validation


def fine_tune(frozen: Network, data: LabeledImages, found: FineTuning, seed: int, watch: Watch) -> Network:
    """Train on all labels as validation says; the encoder's facts say so, wherever it is used from now on."""
    generator = rng.generator(seed, rng.SERVER, 0, "fine-tuning")
    *_, network = _stages(frozen, data, found.stages, generator, watch, "fine-tuning on all labels")
    with torch.no_grad():
        for parameter in network.head.parameters():
            parameter.div_(found.temperature)
    labels = {"images": len(data), "classes": network.head.out_features}
    facts = {**network.encoder.facts, "fine_tuned": labels}
    return Network(FrozenEncoder(network.encoder.backbone, facts, network.encoder.image_size), network.head)


def validate(
    frozen: Network, data: LabeledImages, features: Features, l2: float, folds: list[Indices], seed: int, watch: Watch
) -> FineTuning:
    """Fine-tune without each fold, until enough images were held out; of equally good stages, the first is chosen."""
    used = [fold for number, fold in enumerate(folds) if sum(map(len, folds[:number])) < ENOUGH]
    logits = torch.full((STAGES, len(data), frozen.head.out_features), torch.nan, dtype=torch.float64)
    for number, fold in enumerate(used):
        rest = np.setdiff1d(np.arange(len(data)), fold)
        head = solve(Features(features.values[rest], features.labels[rest]), frozen.head.out_features, l2)
        start, generator = Network(frozen.encoder, head.as_module()), rng.generator(seed, number, 0, "fine-tuning")
        what = f"fine-tuning without fold {number + 1} of {len(used)}"
        for stage, network in enumerate(_stages(start, _part(data, rest), STAGES, generator, watch, what)):
            logits[stage, fold] = network.logits(_part(data, fold))
    tried = [Validation(values, used) for values in logits]
    best = max(range(STAGES), key=lambda stage: (tried[stage].correct(features.labels), -stage))
    evaluated = torch.from_numpy(tried[best].evaluated)
    return FineTuning(best + 1, _temperature(tried[best].logits[evaluated], features.labels[evaluated]), tried[best])


def _stages(
    start: Network, data: LabeledImages, count: int, generator: torch.Generator, watch: Watch, what: str
) -> Iterator[Network]:
    """AdamW with a cosine schedule; the network after each of the first stages."""
    backbone, head = deepcopy(start.encoder.backbone).requires_grad_(True), deepcopy(start.head).requires_grad_(True)
    steps = max(FEWEST_STEPS, math.ceil(EPOCHS * len(data) / BATCH))
    parameters = [*backbone.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(parameters, LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    batches = _batches(len(data), generator)
    for step in watch(range(1, steps * count // STAGES + 1), what):
        batch = _part(data, next(batches))
        logits = head(backbone(VIEWS(torch.from_numpy(batch.images), generator)))
        optimizer.zero_grad()
        functional.cross_entropy(logits, torch.from_numpy(batch.labels)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
        if step * STAGES // steps > (step - 1) * STAGES // steps:
            encoder = FrozenEncoder(deepcopy(backbone), start.encoder.facts, start.encoder.image_size)
            yield Network(encoder, deepcopy(head).requires_grad_(False))


def _batches(images: int, generator: torch.Generator) -> Iterator[Indices]:
    """Every image once before any twice; all of them at a time if they are fewer than a batch."""
    order = torch.empty(0, dtype=torch.long)
    while True:
        if len(order) < min(BATCH, images):
            order = torch.cat([order, torch.randperm(images, generator=generator)])
        yield order[:BATCH].numpy()
        order = order[BATCH:]


def _temperature(logits: Tensor, labels: Tensor) -> float:
    """Of a grid from 1/4 to 16, the value at which the labels (n,) are likeliest."""
    grid = [2 ** (step / 8) for step in range(-16, 33)]
    return min(grid, key=lambda value: functional.cross_entropy(logits / value, labels).item())


def _part(data: LabeledImages, chosen: Indices) -> LabeledImages:
    return LabeledImages(data.images[chosen], data.labels[chosen])
