"""What a model says of image files: many, of any size, some of them broken.

A file that cannot be read costs its own answer and a sentence, never those of the others. A model always finds its most
probable class, also for a picture of none of them: below a threshold the answer is `unsure`. That helps against doubt
between classes; a picture of something else can still be answered with great confidence.

They are written as a JSON object per line (`jq`, pandas with `lines=True`), as CSV, or as rows of a table for people.
Names of files and classes may be anybody's: no control character of theirs is written as it is.
"""

import csv
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from sofed_flwr.classifier.labels import Watch
from sofed_flwr.classifier.model import Predictor
from sofed_flwr.core.errors import ConfigError
from sofed_flwr.core.records import Pixels
from sofed_flwr.core.redaction import printable
from sofed_flwr.datasets.image_files import PassedOver, images_below
from sofed_flwr.images.batches import read_image

UNSURE = "unsure"
BATCH = 64
"""Images that are computed at once, so many that the progress bar still moves."""
BATCH_PIXELS = 2**22
"""And of large ones no more than these: 64 of 256 x 256, one of the largest that a model can be for."""


@dataclass(frozen=True)
class Prediction:
    """The answer, and the most probable classes with their probabilities, the best first."""

    file: str
    answer: str
    top: list[tuple[str, float]]


def find_files(places: Sequence[Path], failures: list[str]) -> list[Path]:
    """Files as they are named, those of a directory in order of name; what holds no image is added to `failures`."""
    found = []
    for place in places:
        passed_over = PassedOver()
        within = [Path(file) for file in images_below(place, passed_over)] if place.is_dir() else [place]
        failures += [f"{link}: a link to a folder, which is not followed" for link in passed_over.folders]
        failures += [f"{photo}: {why}" for photo, why in passed_over.photos]
        if not within and not passed_over.photos:
            failures.append(f"{place}: a folder without images")
        found += within
    return found


def predict_files(
    model: Predictor, files: Sequence[Path], top: int, threshold: float, failures: list[str], watch: Watch
) -> list[Prediction]:
    """One for each file that can be read, in their order; why the others cannot is added to `failures`."""
    found = []
    for names, pixels in _batches(model, files, failures, watch):
        probabilities = model.probabilities(torch.from_numpy(np.stack(pixels)))
        if not probabilities.isfinite().all():
            first = names[int((~probabilities.isfinite()).any(dim=1).int().argmax())]
            raise ConfigError(f"the model's answer for {first} is not a number; its weights are of no use")
        values, classes = probabilities.sort(dim=1, descending=True, stable=True)
        for name, row, numbers in zip(names, values[:, :top].tolist(), classes[:, :top].tolist(), strict=True):
            best = [(model.classes[number], value) for number, value in zip(numbers, row, strict=True)]
            found.append(Prediction(str(name), best[0][0] if best[0][1] >= threshold else UNSURE, best))
    return found


def _batches(
    model: Predictor, files: Sequence[Path], failures: list[str], watch: Watch
) -> Iterator[tuple[list[Path], list[Pixels]]]:
    size = model.image_size
    if size is None:
        raise ConfigError("the model does not say the size of its images, so no file can be scaled to it")
    names: list[Path] = []
    pixels: list[Pixels] = []
    for file in watch(files, "images"):
        try:
            if file.exists() and not file.is_file():  # a pipe would be waited for
                raise ValueError(f"{file} is not a file")
            pixels.append(read_image(file, size))
            names.append(file)
        except (OSError, ValueError) as error:
            failures.append(str(error))
        if len(pixels) == min(BATCH, BATCH_PIXELS // (size[0] * size[1])):
            yield names, pixels
            names, pixels = [], []
    if pixels:
        yield names, pixels


def as_json(prediction: Prediction) -> str:
    """One object on one line, in ASCII: control characters of a name are escaped."""
    top = [{"class": name, "probability": round(value, 6)} for name, value in prediction.top]
    return json.dumps({"file": prediction.file, "answer": prediction.answer, "top": top})


def as_csv(predictions: Sequence[Prediction]) -> str:
    """With a header; as many classes as there are in every row. Control characters are escaped as in Python."""
    count = len(predictions[0].top) if predictions else 0
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    pairs = [f"{name}_{place}" for place in range(1, count + 1) for name in ("class", "probability")]
    writer.writerow(["file", "answer", *pairs])
    for prediction in predictions:
        values = [part for name, value in prediction.top for part in (printable(name), f"{value:.6f}")]
        writer.writerow([printable(prediction.file), printable(prediction.answer), *values])
    return text.getvalue()


def as_rows(predictions: Sequence[Prediction]) -> list[list[str]]:
    """Headings, then what a person reads."""
    rows = [["file", "answer", "probabilities"]]
    for prediction in predictions:
        top = ", ".join(f"{printable(name)} {value:.2f}" for name, value in prediction.top)
        rows.append([printable(prediction.file), printable(prediction.answer), top])
    return rows
