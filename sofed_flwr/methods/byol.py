"""BYOL (Grill et al., 2020), the local model of SOFed (paper, sec. III-B).

An online encoder (backbone and projector) with a predictor learns to predict the target encoder's output for another
view of the same image. Online encoder and predictor are shared, the target is not.
"""

from collections.abc import Iterator

import torch
from pydantic import ConfigDict, validate_call
from torch import Tensor, nn

from sofed_flwr.methods.losses import dissimilarity
from sofed_flwr.methods.momentum import MomentumMethod
from sofed_flwr.models.heads import Widths, predictor_of
from sofed_flwr.views.training import TrainingViews, Unit


class BYOL(MomentumMethod):
    """`projector` and `predictor` are the widths after the input, the last one common to both.

    `symmetric` adds eq. (1) for the other order of the two views, as public BYOL code does: twice the passes of the
    equation as the paper prints it.
    """

    shared_modules = ("online", "predictor")

    @validate_call(config=ConfigDict(arbitrary_types_allowed=True))
    def __init__(
        self,
        encoder: nn.Module,
        views: TrainingViews,
        projector: Widths,
        predictor: Widths,
        ema: Unit,
        symmetric: bool = True,
    ) -> None:
        super().__init__(encoder, views, projector, ema)
        self.symmetric = symmetric
        self.predictor = predictor_of(projector, predictor)

    def loss_terms(self, images: Tensor, generator: torch.Generator) -> Iterator[Tensor]:
        """Eq. (1), for both orders of the two views unless `symmetric` is false.

        The target's outputs come first, without gradients; then each term is a graph of its own, which halves the
        memory for activations: the gradient of a sum is the sum of gradients.
        """
        first, second = self.two_views(images, generator)
        with torch.no_grad():
            of_first = self.target(first) if self.symmetric else None
            of_second = self.target(second)
        yield dissimilarity(self.online_branch(first), of_second)
        if of_first is not None:
            yield dissimilarity(self.online_branch(second), of_first)

    def online_branch(self, inputs: Tensor) -> Tensor:
        """y_o = g_o(f_o(v))."""
        y: Tensor = self.predictor(self.online(inputs))
        return y
