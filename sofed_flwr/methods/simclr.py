"""FedSimCLR: SimCLR (Chen et al., 2020) under FedAvg, the paper's second baseline framework.

Online and target are the same network; the negatives are the other images of the buffer.
"""

from collections.abc import Iterator
from typing import Annotated

import torch
from pydantic import ConfigDict, Field, validate_call
from torch import Tensor, nn

from sofed_flwr.methods.base import Method
from sofed_flwr.methods.losses import nt_xent
from sofed_flwr.models.heads import Widths
from sofed_flwr.views.training import TrainingViews


class SimCLR(Method):
    """`temperature` divides the cosines. Everything is shared, nothing is kept."""

    @validate_call(config=ConfigDict(arbitrary_types_allowed=True))
    def __init__(
        self, encoder: nn.Module, views: TrainingViews, projector: Widths, temperature: Annotated[float, Field(gt=0)]
    ) -> None:
        super().__init__(encoder, views, projector)
        self.temperature = temperature

    def loss_terms(self, images: Tensor, generator: torch.Generator) -> Iterator[Tensor]:
        """One term: every view meets every other, so the graph cannot be cut."""
        first, second = self.online(torch.cat(self.two_views(images, generator))).chunk(2)
        yield nt_xent(first, second, self.temperature)
