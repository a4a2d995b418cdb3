"""FedMoCo: MoCo v2 (Chen et al., 2020) under FedAvg, symmetric in its two views.

The negatives are a queue of the target's earlier projections. Target and queue are this device's own and survive its
rounds: projections are features of images, which must not leave, and a queue that started again at every round would be
random numbers for most of it.
"""

from collections.abc import Iterator
from typing import Annotated

import torch
from pydantic import ConfigDict, Field, validate_call
from torch import Tensor, nn
from torch.nn import functional

from sofed_flwr.methods.losses import info_nce
from sofed_flwr.methods.momentum import MomentumMethod
from sofed_flwr.models.heads import Widths
from sofed_flwr.views.training import TrainingViews, Unit


class MoCo(MomentumMethod):
    """`queue` is the number of negatives."""

    queue: Tensor

    @validate_call(config=ConfigDict(arbitrary_types_allowed=True))
    def __init__(
        self,
        encoder: nn.Module,
        views: TrainingViews,
        projector: Widths,
        ema: Unit,
        temperature: Annotated[float, Field(gt=0)],
        queue: Annotated[int, Field(ge=1)],
    ) -> None:
        super().__init__(encoder, views, projector, ema)
        self.temperature = temperature
        self.register_buffer("queue", functional.normalize(torch.randn(queue, projector[-1])))
        self._keys = torch.empty(0, projector[-1])

    def loss_terms(self, images: Tensor, generator: torch.Generator) -> Iterator[Tensor]:
        """Each view's query against the other view's key; the keys enter the queue after the step."""
        first, second = self.two_views(images, generator)
        with torch.no_grad():
            of_first, of_second = self.target(first), self.target(second)
        self._keys = functional.normalize(torch.cat([of_first, of_second]))
        yield info_nce(self.online(first), of_second, self.queue, self.temperature)
        yield info_nce(self.online(second), of_first, self.queue, self.temperature)

    def after_step(self) -> None:
        """The target follows; the newest keys enter the queue in front, the oldest leave it at the end."""
        super().after_step()
        self.queue.copy_(torch.cat([self._keys, self.queue])[: len(self.queue)])
