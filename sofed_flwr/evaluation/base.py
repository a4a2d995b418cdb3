"""What every evaluator of the second stage is: features in, named accuracies out.

The encoder is frozen and its features are extracted once (`features.py`), so an evaluator never sees a model or an
image, and several of them can share one extraction. Labels are used here and for the stream order only.
"""

from collections.abc import Iterator
from typing import Protocol

from torch import Tensor

from sofed_flwr.core.records import Features


class Evaluator(Protocol):
    """Evaluates frozen features: fits on `train`, yields (name, accuracy in percent) on `test`."""

    def run(self, train: Features, test: Features) -> Iterator[tuple[str, float]]:
        """Yield one (name, accuracy in percent) per measure; the same features give the same values."""
        ...


def accuracy(predicted: Tensor, labels: Tensor) -> float:
    """Percent of correct predictions over all images at once.

    One mean over the whole set: a mean of per-batch means, as in EasyFL, gives the short last batch too much weight.
    """
    return 100 * (predicted == labels).double().mean().item()
