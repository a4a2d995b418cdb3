"""`sofed evaluate`: kNN and linear probe of an encoder file, on its training images unless the user names others."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from sofed_flwr.analysis.provenance import training_data
from sofed_flwr.build import build_dataset, build_suite
from sofed_flwr.config.compose import compose
from sofed_flwr.config.override_text import merged
from sofed_flwr.config.schema import RunConfig
from sofed_flwr.core.records import Split
from sofed_flwr.encoder import FrozenEncoder, load_encoder

CHOOSING = {"dataset", "scale", "experiment", "resume"}
"""Overrides after which the data is the user's choice."""


class Measurement(NamedTuple):
    """The data, the values measured on it, and remarks for the reader."""

    data: str
    values: dict[str, float]
    remarks: list[str]


def evaluate(file: Path, overrides: Sequence[str]) -> Measurement:
    """Run the evaluators of the configuration on an encoder."""
    encoder = load_encoder(file)
    config, split, remarks = data_for(encoder, file, overrides)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of another size: that is a remark here
        values = build_suite(config).run(encoder, encoder.features, split)
    return Measurement(_described(config, split), values, remarks)


def data_for(encoder: FrozenEncoder, file: Path, overrides: Sequence[str]) -> tuple[RunConfig, Split, list[str]]:
    """What overrides choose, at the size of the encoder's training; without a choice the images it was trained on.

    With the configuration that loads it, and remarks for the reader.
    """
    keys = {override.partition("=")[0].lstrip("+") for override in overrides}
    known = [] if keys & CHOOSING else training_data(file, encoder.facts)
    config = _at_training_size(compose(merged(known, overrides)), encoder, keys)
    split = build_dataset(config)
    remarks = [] if known or keys & CHOOSING else ["the file does not say on which data the encoder was trained"]
    return config, split, [*remarks, *_size_remarks(encoder, split)]


def _at_training_size(config: RunConfig, encoder: FrozenEncoder, keys: set[str]) -> RunConfig:
    """Datasets that scale their images use the size of training, unless the user sets another."""
    size = encoder.image_size
    if size is None or size[0] != size[1] or "size" not in config.dataset or "dataset.size" in keys:
        return config
    return config.model_copy(update={"dataset": config.dataset | {"size": size[0]}})


def _described(config: RunConfig, split: Split) -> str:
    settings = [f"{key}={value}" for key, value in config.dataset.items() if key not in ("_target_", "download")]
    height, width = split.train.images.shape[-2:]
    return f"dataset={config.choices.get('dataset')} ({', '.join([*settings, f'{height} x {width} pixels'])})"


def _size_remarks(encoder: FrozenEncoder, split: Split) -> list[str]:
    height, width = split.train.images.shape[-2:]
    if encoder.image_size is None:
        return [f"the file does not say the image size of training; these images have {height} x {width} pixels"]
    if encoder.image_size == (height, width):
        return []
    before = " x ".join(map(str, encoder.image_size))
    return [f"trained at {before} pixels, evaluated at {height} x {width}: another size gives other accuracies"]
