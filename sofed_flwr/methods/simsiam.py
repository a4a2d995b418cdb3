"""FedSimSiam: SimSiam (Chen and He, 2021) under FedAvg: BYOL without a target network.

The target is the online encoder itself, with its gradient stopped.
"""

from collections.abc import Iterator

import torch
from pydantic import ConfigDict, validate_call
from torch import Tensor, nn

from sofed_flwr.methods.base import Method
from sofed_flwr.methods.losses import dissimilarity
from sofed_flwr.models.heads import Widths, predictor_of
from sofed_flwr.views.training import TrainingViews


class SimSiam(Method):
    """Everything is shared, nothing is kept."""

    shared_modules = ("online", "predictor")

    @validate_call(config=ConfigDict(arbitrary_types_allowed=True))
    def __init__(self, encoder: nn.Module, views: TrainingViews, projector: Widths, predictor: Widths) -> None:
        super().__init__(encoder, views, projector)
        self.predictor = predictor_of(projector, predictor)

    def loss_terms(self, images: Tensor, generator: torch.Generator) -> Iterator[Tensor]:
        """Both orders of the two views, on BYOL's scale: 4 + 4 times the authors' loss, so learning rates compare."""
        first, second = self.two_views(images, generator)
        of_first, of_second = self.online(first), self.online(second)
        yield dissimilarity(self.predictor(of_first), of_second.detach())
        yield dissimilarity(self.predictor(of_second), of_first.detach())

    def online_branch(self, inputs: Tensor) -> Tensor:
        """The predicted projection."""
        y: Tensor = self.predictor(self.online(inputs))
        return y
