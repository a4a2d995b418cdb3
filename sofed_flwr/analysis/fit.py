"""`sofed fit`: an encoder and labels, wherever the user has them, become a classifier.

The labels are in a folder, in a CSV, or in a dataset that overrides choose, as they do for `sofed evaluate`.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sofed_flwr.analysis.evaluate import data_for
from sofed_flwr.classifier.fit import Fit, fit
from sofed_flwr.classifier.labels import Choice, LabelSet, Watch, names_of, of_dataset, read_labels
from sofed_flwr.config.instantiate import build
from sofed_flwr.core.errors import ConfigError
from sofed_flwr.encoder import FrozenEncoder, load_encoder


def fit_labels(
    place: Path, words: Sequence[str], choice: Choice, fine_tuning: bool, watch: Watch
) -> tuple[list[str], Fit]:
    """`place` is of an encoder or of a model, `words` are one path or overrides; remarks come before the result."""
    encoder = load_encoder(place)
    labels = _labels(encoder, place, words, choice, watch)
    remarks = [*labels.remarks, *_fewer(labels, choice)]
    return remarks, fit(encoder, labels, choice, fine_tuning, watch)


def _fewer(labels: LabelSet, choice: Choice) -> list[str]:
    """Classes that have not as many labels as were asked for."""
    counts = np.bincount(labels.train.data.labels)
    if choice.per_class is None or counts.min() >= choice.per_class:
        return []
    fewer = f"{np.count_nonzero(counts < choice.per_class)} of {len(counts)} classes have fewer labels"
    return [f"--per-class {choice.per_class}: {fewer}, {counts.min()} at the least; all of theirs are used"]


def _labels(encoder: FrozenEncoder, place: Path, words: Sequence[str], choice: Choice, watch: Watch) -> LabelSet:
    if len(words) == 1 and ("=" not in words[0] or Path(words[0]).exists()):
        if encoder.image_size is None:
            raise ConfigError(f"{place} does not say the size of its images; give the labels as dataset=NAME")
        return read_labels(Path(words[0]), encoder.image_size, choice, watch)
    if wrong := [word for word in words if "=" not in word]:
        raise ConfigError(f"{wrong[0]}: expected one folder or CSV of labels, or overrides such as dataset=shapes")
    config, split, remarks = data_for(encoder, place, words)
    names = names_of(build(config.dataset, "dataset"))
    return of_dataset(split, names, f"dataset={config.choices.get('dataset')}", choice, remarks)
