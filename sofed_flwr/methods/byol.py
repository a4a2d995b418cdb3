"""BYOL (Grill et al., 2020), the local model of SOFed (paper, sec. III-B).

An online encoder (backbone and projector) with a predictor learns to foresee what the target encoder says of another
view of the same image; the target follows by exponential moving average. Online encoder and predictor are shared. The
target is this device's own: it starts as a copy of the first global model the device receives and is never replaced.
"""

from collections import OrderedDict
from collections.abc import Iterator
from copy import deepcopy
from typing import Annotated, Any

import torch
from pydantic import ConfigDict, Field, validate_call
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.swa_utils import get_ema_multi_avg_fn

from sofed_flwr.contracts import State
from sofed_flwr.methods.base import Method
from sofed_flwr.models.heads import mlp
from sofed_flwr.views import TrainingViews

Widths = Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=2)]


class BYOL(Method):
    """`projector` and `predictor` are the widths after the input, the last one common to both."""

    shared_modules = ("online", "predictor")

    @validate_call(config=ConfigDict(arbitrary_types_allowed=True))
    def __init__(
        self,
        encoder: nn.Module,
        views: TrainingViews,
        projector: Widths,
        predictor: Widths,
        ema: Annotated[float, Field(ge=0, le=1)],
    ) -> None:
        super().__init__()
        if predictor[-1] != projector[-1]:
            raise ValueError(f"predictor ends in {predictor[-1]}, but has to foresee a projection of {projector[-1]}")
        self.views = views
        width: Any = encoder.feature_dim
        self.online = nn.Sequential(OrderedDict(backbone=encoder, projector=mlp([width, *projector])))
        self.predictor = mlp([projector[-1], *predictor])
        self.target = deepcopy(self.online).requires_grad_(False)
        self._follow = get_ema_multi_avg_fn(ema)  # type: ignore[no-untyped-call]
        self.to(memory_format=torch.channels_last)

    def loss_terms(self, images: Tensor, generator: torch.Generator) -> Iterator[Tensor]:
        """Eq. (1) for both orders of the two views.

        The target speaks first, without gradients; then each term is a graph of its own, which halves the memory for
        activations and changes nothing else: the gradient of a sum is the sum of gradients.
        """
        first, second = self.views(torch.cat([images, images]), generator).chunk(2)
        with torch.no_grad():
            of_first, of_second = self.target(first), self.target(second)
        yield dissimilarity(self.online_branch(first), of_second)
        yield dissimilarity(self.online_branch(second), of_first)

    @torch.no_grad()
    def after_step(self) -> None:
        """W_t ← τ W_t + (1 - τ) W: parameters only; the target's BatchNorm statistics come from its own forwards."""
        self._follow(list(self.target.parameters()), list(self.online.parameters()), 0)

    def online_branch(self, inputs: Tensor) -> Tensor:
        """y_o = g_o(f_o(v))."""
        y: Tensor = self.predictor(self.online(inputs))
        return y

    def target_branch(self, inputs: Tensor) -> Tensor:
        """y_t = f_t(v)."""
        y: Tensor = self.target(inputs)
        return y

    def backbone(self) -> nn.Module:
        """The online encoder without its projector."""
        return self.online.get_submodule("backbone")

    def take_global(self, shared: State, local: State | None) -> None:
        """Online network from the server, target from this device, or from the server the very first time."""
        self.load(shared)
        if local is None:
            self.target.load_state_dict(self.online.state_dict())
        else:
            self.load(local)


def dissimilarity(prediction: Tensor, target: Tensor) -> Tensor:
    """Eq. (1), the mean over a batch: 2 - 2 cos."""
    return (2 - 2 * functional.cosine_similarity(prediction, target)).mean()
