"""FedU (Zhuang et al., 2021): BYOL with a divergence-aware predictor update.

The encoder always takes the global model. The predictor does so only if the device's encoder moved by less than `mu` in
its last round; a device that moved far has data unlike the others', and keeps its own predictor.
"""

from typing import Annotated

import torch
from pydantic import ConfigDict, Field, validate_call
from torch import nn

from sofed_flwr.core.records import State
from sofed_flwr.core.state_dicts import over, under
from sofed_flwr.methods.byol import BYOL
from sofed_flwr.methods.divergence import divergence
from sofed_flwr.models.heads import Widths
from sofed_flwr.views.training import TrainingViews, Unit

OWN = "own_predictor."


class FedU(BYOL):
    """Keeps, beside BYOL's target, its predictor and the distance its encoder travelled."""

    @validate_call(config=ConfigDict(arbitrary_types_allowed=True))
    def __init__(
        self,
        encoder: nn.Module,
        views: TrainingViews,
        projector: Widths,
        predictor: Widths,
        ema: Unit,
        mu: Annotated[float, Field(ge=0)],
        symmetric: bool = True,
    ) -> None:
        super().__init__(encoder, views, projector, predictor, ema, symmetric)
        self.mu = mu
        self._before = self._encoder_state()

    def local_state(self) -> State:
        """Target, predictor, and how far the encoder went since it took the global model."""
        predictor = over(OWN, {name: tensor.cpu().clone() for name, tensor in self.predictor.state_dict().items()})
        travelled = divergence(self.backbone(), self._before, self._encoder_state())
        return {**super().local_state(), **predictor, "travelled": torch.tensor(travelled)}

    def take_global(self, shared: State, local: State | None) -> None:
        """Global encoder, own target, and the predictor by the rule."""
        if local is None:
            super().take_global(shared, None)
        else:
            target = {name: tensor for name, tensor in local.items() if name.startswith("target.")}
            super().take_global(shared, target)
            if local["travelled"] >= self.mu:
                self.predictor.load_state_dict(under(OWN, local))
        self._before = self._encoder_state()

    def _encoder_state(self) -> State:
        return {name: tensor.cpu().clone() for name, tensor in self.backbone().state_dict().items()}
