"""A classifier people take away: the frozen encoder and a linear head (paper, sec. III-A: the second stage)."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from sofed_flwr.encoder import FrozenEncoder
from sofed_flwr.images.batches import Images


class Predictor(Protocol):
    """What answers for a model, whatever runs it: torch, or a runtime for its ONNX file."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Names, in the order of the probabilities."""

    @property
    def image_size(self) -> tuple[int, int] | None:
        """Height and width of the images it was trained for."""

    def probabilities(self, images: Tensor) -> Tensor:
        """Pixels uint8 (n, 3, H, W) -> (n, classes), rows that sum to 1."""


@contextmanager
def one_thread() -> Iterator[None]:
    """torch computes every operation on one thread, and afterwards on as many as before."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class Classifier(nn.Module):
    """`head` maps the encoder's features to one value per class; `facts` are what a reader should know of its training.

    Whatever standardised the features while the head was fitted is folded into the head, so that it is plain
    `nn.Linear`, as other tools expect.
    """

    def __init__(
        self, encoder: FrozenEncoder, head: nn.Linear, classes: Sequence[str], facts: Mapping[str, Any]
    ) -> None:
        super().__init__()
        assert head.out_features == len(classes), "a head has one output per class"
        self.encoder = encoder
        self.head = head.requires_grad_(False)
        self.classes = tuple(classes)
        self.facts = facts
        self.image_size = encoder.image_size
        self.eval()

    @torch.inference_mode()
    def probabilities(self, images: Images) -> Tensor:
        """Images, as in `FrozenEncoder.features` -> (n, classes), rows that sum to 1."""
        logits: Tensor = self.head(self.encoder.features(images))
        return logits.softmax(dim=1)

    def predict(self, images: Images) -> list[str]:
        """The most probable class of every image."""
        return [self.classes[number] for number in self.probabilities(images).argmax(dim=1).tolist()]
