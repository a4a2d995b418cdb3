"""FedEMA (Zhuang et al., 2022): BYOL whose device mixes the global model into its own instead of taking it.

w = min(1, λ ||global - own||), then online ← (1 - w) global + w own, and the predictor likewise: the further a device
is from the others, the more of its own knowledge it keeps. λ is scaled once per device, so that w = `tau` the first
time: distances depend on the architecture, a fraction does not.
"""

import torch
from pydantic import ConfigDict, validate_call
from torch import nn

from sofed_flwr.core.records import State
from sofed_flwr.core.state_dicts import over, under
from sofed_flwr.methods.byol import BYOL
from sofed_flwr.methods.divergence import divergence
from sofed_flwr.models.heads import Widths
from sofed_flwr.views.training import TrainingViews, Unit

OWN = "own."
BACKBONE = "online.backbone."


class FedEMA(BYOL):
    """Keeps, beside BYOL's target, its online encoder and predictor, and λ (0 until it is scaled)."""

    @validate_call(config=ConfigDict(arbitrary_types_allowed=True))
    def __init__(
        self,
        encoder: nn.Module,
        views: TrainingViews,
        projector: Widths,
        predictor: Widths,
        ema: Unit,
        tau: Unit,
        symmetric: bool = True,
    ) -> None:
        super().__init__(encoder, views, projector, predictor, ema, symmetric)
        self.tau = tau
        self._scale = 0.0

    def local_state(self) -> State:
        """Target, λ, and this device's model as it was before the server averaged it."""
        return {
            **super().local_state(),
            **over(OWN, self.shared_state()),
            "scale": torch.tensor(self._scale, dtype=torch.float64),
        }

    def take_global(self, shared: State, local: State | None) -> None:
        """Mix by distance."""
        if local is None:
            super().take_global(shared, None)
            return
        own = under(OWN, local)
        target = {name: tensor for name, tensor in local.items() if name.startswith("target.")}
        distance = divergence(self.backbone(), under(BACKBONE, shared), under(BACKBONE, own))
        self._scale = float(local["scale"]) or (self.tau / distance if distance else 0.0)
        super().take_global(mix(shared, own, min(1.0, self._scale * distance)), target)


def mix(global_state: State, own: State, weight: float) -> State:
    """(1 - w) global + w own; integer counters come from the global model."""
    return {
        name: torch.lerp(tensor, own[name], weight) if tensor.is_floating_point() else tensor
        for name, tensor in global_state.items()
    }
