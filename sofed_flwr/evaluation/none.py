"""No evaluation: a fleet whose server has no images, labeled or not."""

from typing import Any

from sofed_flwr.evaluation.suite import Suite


class NoEvaluation(Suite):
    """Nothing is ever due, so the dataset is never opened; other settings of the evaluation are ignored."""

    def __init__(self, **_: Any) -> None:
        super().__init__(every=1)

    def due(self, round_number: int, last: int) -> bool:
        """Never."""
        return False
