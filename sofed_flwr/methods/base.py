"""What a self-supervised method is: how it learns, what it shares, what it keeps.

No other code depends on the method. The trainer backpropagates its loss terms, the device sends `shared_state()` and
stores `local_state()`, and `take_global` defines how a global model is received. Importance scoring
works for every method, since each is a Siamese pair of an online and a target branch (paper, "Compatibility with other
contrastive learning architectures").
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional

from sofed_flwr.core.records import State
from sofed_flwr.models.heads import with_projector
from sofed_flwr.views.pixels import network_input
from sofed_flwr.views.training import TrainingViews
from sofed_flwr.views.weak import WEAK_VIEWS


class Method(nn.Module, ABC):
    """A trainable Siamese pair, of which the target branch is the online network itself unless a subclass has another.

    `online` is the paper's encoder W: backbone and projector. Subclasses name the modules they share in
    `shared_modules`; the rest stays local. `most_clients` limits the number of clients.
    """

    shared_modules: tuple[str, ...] = ("online",)
    most_clients: int | None = None

    def __init__(self, encoder: nn.Module, views: TrainingViews, projector: Sequence[int]) -> None:
        super().__init__()
        self.online = with_projector(encoder, projector)
        self.views = views
        self.to(memory_format=torch.channels_last)

    @property
    def device(self) -> torch.device:
        """Where it computes; images come from the CPU, and states and scores go back there."""
        return next(self.parameters()).device

    @abstractmethod
    def loss_terms(self, images: Tensor, generator: torch.Generator) -> Iterator[Tensor]:
        """Yield the loss term by term; a term's graph may be freed before the next one is built."""

    def online_branch(self, inputs: Tensor) -> Tensor:
        """Output of the online network: y_o."""
        y: Tensor = self.online(inputs)
        return y

    def target_branch(self, inputs: Tensor) -> Tensor:
        """Output of the target network: y_t."""
        y: Tensor = self.online(inputs)
        return y

    def backbone(self) -> nn.Module:
        """The network whose features the second stage uses: the online encoder without its projector."""
        return self.online.get_submodule("backbone")

    def take_global(self, shared: State, local: State | None) -> None:
        """Begin a round: combine the global model with what this device kept, None on its first start."""
        self.load(shared)
        self.load(local or {})

    def two_views(self, images: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Two strong views of every image: v and v'."""
        images = images.to(self.device)
        first, second = self.views(torch.cat([images, images]), generator).chunk(2)
        return first, second

    def after_step(self) -> None:
        """Called after each optimizer step, for example to update a moving average."""

    def score(self, images: Tensor, weak_view: str) -> Tensor:
        """Eq. (3): dissimilarity of an image and its weak view, in [0, 2].

        In evaluation mode: with batch statistics a score would depend on the other images of the batch.
        """
        with self._frozen():
            images = images.to(self.device)
            online = self.online_branch(network_input(images))
            target = self.target_branch(network_input(WEAK_VIEWS[weak_view](images)))
            return (1 - functional.cosine_similarity(online, target)).cpu()

    def score_with_features(self, images: Tensor, weak_view: str) -> tuple[Tensor, Tensor]:
        """Scores, and the backbone features (n, d) that the online branch computed on the way: no pass of their own."""
        passed: list[Tensor] = []
        hook = self.backbone().register_forward_hook(lambda _, __, features: passed.append(features))
        try:
            return self.score(images, weak_view), passed[0].cpu()
        finally:
            hook.remove()

    def features(self, images: Tensor) -> Tensor:
        """Backbone features (n, d) of un-augmented pixels."""
        with self._frozen():
            features: Tensor = self.backbone()(network_input(images.to(self.device)))
            return features.cpu()

    def shared_state(self) -> State:
        """A copy of what leaves the device, and nothing else."""
        return self._copy(shared=True)

    def local_state(self) -> State:
        """A copy of what never leaves the device but has to survive until its next round."""
        return self._copy(shared=False)

    def load(self, state: State) -> None:
        """Load exactly the named tensors; a missing, unknown or misshapen one is an error that names it."""
        own = self.state_dict()
        for name, tensor in state.items():
            if name not in own or own[name].shape != tensor.shape:
                expected = tuple(own[name].shape) if name in own else "no such tensor"
                raise ValueError(f"state holds {name} of shape {tuple(tensor.shape)}, the model expects {expected}")
            own[name].copy_(tensor)

    def _copy(self, shared: bool) -> State:
        return {
            name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
            for name, tensor in self.state_dict().items()
            if (name.split(".")[0] in self.shared_modules) == shared
        }

    @contextmanager
    def _frozen(self) -> Iterator[None]:
        was_training = self.training
        self.eval()
        try:
            with torch.inference_mode():
                yield
        finally:
            self.train(was_training)
