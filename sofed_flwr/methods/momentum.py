"""Methods whose target is a moving average of the online encoder: what BYOL and MoCo have in common.

The target is this device's own: it starts as a copy of the first global model the device receives and is never
replaced by one (Algorithm 1 copies only W and W_p into the device).
"""

from collections.abc import Sequence
from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from sofed_flwr.core.records import State
from sofed_flwr.methods.base import Method
from sofed_flwr.views.training import TrainingViews


class MomentumMethod(Method):
    """An online encoder and a target that follows it."""

    def __init__(self, encoder: nn.Module, views: TrainingViews, projector: Sequence[int], ema: float) -> None:
        super().__init__(encoder, views, projector)
        self.target = deepcopy(self.online).requires_grad_(False)
        self._follow = get_ema_multi_avg_fn(ema)  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def after_step(self) -> None:
        """W_t ← τ W_t + (1 - τ) W: parameters only; the target's BatchNorm statistics come from its own forwards."""
        self._follow(list(self.target.parameters()), list(self.online.parameters()), 0)

    def target_branch(self, inputs: Tensor) -> Tensor:
        """y_t = f_t(v)."""
        y: Tensor = self.target(inputs)
        return y

    def take_global(self, shared: State, local: State | None) -> None:
        """Online network from the server, target from this device, or from the server the very first time."""
        super().take_global(shared, local)
        if local is None:
            self.target.load_state_dict(self.online.state_dict())
