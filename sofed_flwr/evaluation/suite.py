"""The second stage as one call: extract features once, run every evaluator, check that the encoder is unchanged."""

import logging
import math
from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
from pydantic import Field, validate_call
from torch import Tensor, nn

from sofed_flwr.core.records import Split
from sofed_flwr.evaluation.base import Evaluator
from sofed_flwr.evaluation.collapse import feature_std, usable
from sofed_flwr.evaluation.features import extract, untouched

log = logging.getLogger(__name__)


class Suite:
    """Evaluators by name, and the number of rounds between two evaluations."""

    @validate_call
    def __init__(self, every: Annotated[int, Field(ge=1)], **evaluators: Any) -> None:
        self.every = every
        self.evaluators: dict[str, Evaluator] = evaluators

    def due(self, round_number: int, last: int) -> bool:
        """Always before the first round and after the last one."""
        return round_number % self.every == 0 or round_number == last

    def run(self, module: nn.Module, encode: Callable[[Tensor], Tensor], split: Split) -> dict[str, float]:
        """All values by name; `feature_std` tells a collapsed encoder (0) from a healthy one (about 1).

        It is NaN, and all there is, where features are not finite: evaluators would give plausible accuracies.

        Images of a single class, as unlabeled ones are, have no classes to compare: `feature_std` is all.
        `encode` maps pixels to features by means of `module`, which must be in evaluation mode: batches run side by
        side, so none may switch it back while another one computes.
        """
        assert not module.training
        labeled = len(np.unique(split.train.labels)) > 1
        if not labeled:
            log.warning("all training images are of one class, or unlabeled: no accuracies")
        with untouched(module):
            test = extract(encode, split.test)
            train = extract(encode, split.train) if labeled else None
        if not all(usable(features.values) for features in (test, train) if features is not None):
            log.warning("the encoder's features are not finite: no accuracies")
            return {"feature_std": math.nan}
        values = {"feature_std": feature_std(test.values)}
        if train is not None:
            for evaluator in self.evaluators.values():
                values.update(evaluator.run(train, test))
        return values
