"""What torch, the exported graph and its int8 version have in common, and how fast each is: measured, not assumed."""

from collections.abc import Callable, Mapping
from functools import partial
from statistics import median
from time import thread_time
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from sofed_flwr.classifier.model import Classifier, one_thread
from sofed_flwr.classifier.model_directory import Model
from sofed_flwr.classifier.onnx_model import OnnxModel
from sofed_flwr.core.errors import ConfigError

LARGEST_DIFFERENCE = 1e-4
"""Of two probabilities, or of two features as a part of the largest one."""
TORCH = "torch"
BATCHES = (1, 32)
"""Images at once: a camera's frame, and a folder."""
LEAST, MOST, SECONDS = 5, 201, 2.0
"""Repetitions of a measurement: more than the least only within this time."""


def torch_rows(model: Model, images: Tensor) -> Tensor:
    """What an exported graph has to compute."""
    return (model.probabilities(images) if isinstance(model, Classifier) else model.features(images)).cpu()


def parity(model: Model, exported: OnnxModel, images: Tensor) -> str:
    """In words; a graph that computes something else than torch is a `ConfigError`.

    A batch of one, of seven and of the rest: the number of images at once must make no difference.
    """
    expected = torch_rows(model, images)
    rows = torch.cat([exported.rows(part) for part in (images[:1], images[1:8], images[8:]) if len(part)])
    difference = float((rows - expected).abs().max())
    if isinstance(model, Classifier):
        same = int((rows.argmax(dim=1) == expected.argmax(dim=1)).sum())
        told = f"largest difference {difference:.1e}, the same class for {same} of {len(images)}"
    else:
        same, difference = len(images), difference / (float(expected.abs().max()) or 1.0)
        told = f"largest difference {difference:.1e} of the largest feature"
    if not difference <= LARGEST_DIFFERENCE or same < len(images):
        raise ConfigError(f"the ONNX graph computes something else than torch: {told}; nothing was written")
    return told


class Measured(NamedTuple):
    """One way to run the model: accuracy and likeness to torch in percent, images per second by batch."""

    accuracy: float | None
    likeness: float
    speed: dict[int, float]


def compare(
    model: Model, exported: Mapping[str, OnnxModel], images: Tensor, targets: Tensor | None
) -> dict[str, Measured]:
    """Every way to run the model, on one thread; `targets` (n,) number the classes of the images."""
    rows = {TORCH: torch_rows(model, images)} | {name: graph.rows(images) for name, graph in exported.items()}
    speeds = _speeds(model, exported, images)
    measured = {}
    for name, own in rows.items():
        accuracy = None if targets is None else _percent(own.argmax(dim=1) == targets)
        measured[name] = Measured(accuracy, _likeness(own, rows[TORCH], isinstance(model, Classifier)), speeds[name])
    return measured


def table(measured: Mapping[str, Measured], sizes: Mapping[str, int]) -> list[list[str]]:
    """Headings, then a row for each way to run the model; sizes are in bytes."""
    labelled = measured[TORCH].accuracy is not None
    speeds = [f"images/s at {batch}" for batch in BATCHES]
    rows = [["on one core", *(["accuracy (%)"] if labelled else []), "as torch (%)", *speeds, "MB"]]
    for name, one in measured.items():
        accuracy = [] if one.accuracy is None else [f"{one.accuracy:.2f}"]
        size = f"{sizes[name] / 1e6:.2f}" if name in sizes else ""
        rows.append([name, *accuracy, f"{one.likeness:.2f}", *(f"{one.speed[batch]:.0f}" for batch in BATCHES), size])
    return rows


def _likeness(rows: Tensor, expected: Tensor, is_classifier: bool) -> float:
    """Images of the same class; of features, which have none, the mean cosine."""
    if is_classifier:
        return _percent(rows.argmax(dim=1) == expected.argmax(dim=1))
    return _percent(functional.cosine_similarity(rows, expected))


def _percent(values: Tensor) -> float:
    return 100 * float(values.double().mean())


@one_thread()
def _speeds(model: Model, exported: Mapping[str, OnnxModel], images: Tensor) -> dict[str, dict[int, float]]:
    speeds: dict[str, dict[int, float]] = {name: {} for name in (TORCH, *exported)}
    for batch in BATCHES:
        part = images[torch.arange(batch) % len(images)]
        runs: dict[str, Callable[[], object]] = {TORCH: partial(torch_rows, model, part)}
        runs |= {name: partial(graph.run, graph.laid_out(part)) for name, graph in exported.items()}
        for name, seconds in interleaved(runs).items():
            speeds[name][batch] = batch / seconds
    return speeds


def interleaved(runs: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """Median seconds of each run, in turn, so that whatever else the machine does meets all of them.

    Seconds of this thread, not of the clock: on a busy machine the rest belongs to other processes.
    """
    for run in runs.values():
        run()  # the first time allocates
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    began, done = thread_time(), 0
    while done < LEAST or (done < MOST and thread_time() - began < SECONDS):
        for name, run in runs.items():
            start = thread_time()
            run()
            seconds[name].append(thread_time() - start)
        done += 1
    return {name: median(times) for name, times in seconds.items()}
