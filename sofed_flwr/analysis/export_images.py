"""Images for an export: those that int8 is calibrated on, and those that tell how good the exported model is.

They are in a folder, or in a dataset that overrides choose, as they do for `sofed evaluate`. Their classes count where
they are the model's own; without them, two versions of a model are still compared with each other.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from sofed_flwr.analysis.evaluate import data_for
from sofed_flwr.classifier.labels import Choice, names_of, of_dataset
from sofed_flwr.classifier.model import Classifier
from sofed_flwr.classifier.model_directory import Model
from sofed_flwr.classifier.onnx_export import Material
from sofed_flwr.classifier.onnx_int8 import IMAGES
from sofed_flwr.config.instantiate import build
from sofed_flwr.config.override_text import quoted
from sofed_flwr.core.errors import ConfigError
from sofed_flwr.core.records import Pixels

OTHER_CLASSES = "the images are of other classes than the model's, so there is no accuracy"
NO_TEST = "the accuracy only compares the files with each other: images that the model was fitted on count, too"
"""A model does not say which images those were."""


def images_for(model: Model, place: Path, words: Sequence[str]) -> Material:
    """`words` are one folder or overrides: training images calibrate, test images compare."""
    if len(words) == 1 and ("=" not in words[0] or Path(words[0]).exists()):
        words = ["dataset=folder", f"dataset.path={quoted(words[0])}"]
    config, split, remarks = data_for(model.encoder if isinstance(model, Classifier) else model, place, words)
    _refuse_other_size(model, split.train.images)
    classes = len(np.unique(split.train.labels))
    if not isinstance(model, Classifier) or classes < 2:
        return Material(split.train.images, np.array(split.test.images), None, tuple(remarks))
    names = names_of(build(config.dataset, "dataset"))
    found = of_dataset(split, names, "the images", Choice(per_class=max(1, IMAGES // classes)), remarks)
    assert found.test is not None, "a dataset has test images"
    targets = None
    if set(found.classes) <= set(model.classes):
        numbers = np.array([model.classes.index(name) for name in found.classes])
        targets = torch.from_numpy(numbers[found.test.data.labels])
    remarks = [*found.remarks, OTHER_CLASSES if targets is None else NO_TEST]
    return Material(found.train.data.images, found.test.data.images, targets, tuple(remarks))


def _refuse_other_size(model: Model, images: Pixels) -> None:
    size = images.shape[-2:]
    if model.image_size is not None and model.image_size != size:
        wanted = " x ".join(map(str, model.image_size))
        raise ConfigError(f"--calibrate: images of {size[0]} x {size[1]} pixels, expected {wanted} as in training")
