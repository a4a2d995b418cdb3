"""The encoder people take away: backbone weights and what is needed to rebuild the backbone, in one safetensors file.

>>> encoder = load_encoder("encoder.safetensors")
>>> features = encoder.features(images)  # uint8 (n, 3, H, W), files, pictures of PIL -> (n, d)

The file may come from anybody. Its architecture is one of this project's encoders, or of a package that was trusted
(`component.trust`), and memory is taken only once the weights are known to be that architecture's.
"""

import warnings
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sofed_flwr.config.instantiate import Component, build
from sofed_flwr.core.app_files import version, written_by
from sofed_flwr.core.errors import ConfigError, DamagedFileError
from sofed_flwr.core.records import State
from sofed_flwr.core.state_dicts import not_finite, unlike
from sofed_flwr.images.batches import Images, as_pixels
from sofed_flwr.images.decoding import has_image_name
from sofed_flwr.storage.generations import read_file, write_file
from sofed_flwr.storage.model_files import OURS, is_model_directory, read_model_files
from sofed_flwr.storage.run_directory import RunDirectory
from sofed_flwr.views.pixels import MEAN, STD, network_input

HEAD = "fc."
"""Before the names of a classifier's head, as in torchvision's ResNets; no encoder of ours has such a part."""
OF_CLASSIFIER = ("classes", "classifier")
"""Facts of the classifier that an encoder was a part of."""
BATCH = 256
"""Images that are computed at once: the rest of a folder would need memory by the gigabyte."""
LARGEST_IMAGE = 2048
"""Pixels of a side that a file may claim."""

EXPECTED = "expected the directory of a model or of a run, or encoder.safetensors"
MOST_LABELS = 10**9
"""Images that a file may claim to be fine-tuned on."""


class FrozenEncoder(nn.Module):
    """A backbone for use, not for training; `image_size` is (height, width) of its training images, None if unknown."""

    def __init__(self, backbone: nn.Module, facts: Mapping[str, Any], image_size: tuple[int, int] | None) -> None:
        super().__init__()
        self.backbone = backbone.to(memory_format=torch.channels_last).requires_grad_(False)
        self.facts = facts
        self.image_size = image_size
        self.eval()

    @property
    def feature_dim(self) -> int:
        """Numbers per image."""
        return int(self.backbone.feature_dim)  # type: ignore[arg-type]

    @torch.inference_mode()
    def features(self, images: Images) -> Tensor:
        """Images -> features (n, d); normalisation is included. `images.batches` says what images can be.

        Arrays of another size than that of training are computed as they are, with a warning.
        """
        pixels = as_pixels(images, self.image_size)
        _warn_of_another_size((pixels.shape[2], pixels.shape[3]), self.image_size)
        device = next(self.backbone.parameters()).device
        return torch.cat([self.backbone(network_input(batch.to(device))) for batch in torch.split(pixels, BATCH)])


def save_encoder(path: Path, backbone: nn.Module, encoder: Component, facts: Mapping[str, Any]) -> None:
    """`encoder` is the yaml the backbone was built from, `facts` whatever a reader should know of its training."""
    meta = {"architecture": encoder, "normalisation": {"mean": MEAN, "std": STD}, **facts, "version": version()}
    write_file(path, backbone.state_dict(), meta)


def load_encoder(path: str | Path) -> FrozenEncoder:
    """The encoder in a file, a run's directory or a model's, there without its head.

    A `DamagedFileError` says why there is none, a `ConfigError` that it is something else.
    """
    place = Path(path)
    if is_model_directory(place):
        state, config = read_model_files(place)
        state, meta = without_head(state), config[OURS]
    else:
        _refuse_other_things(place)
        state, meta = read_file(RunDirectory(place).encoder if place.is_dir() else place)
    try:
        return rebuilt(state, meta)
    except ConfigError as error:
        raise DamagedFileError(
            f"{path} holds no encoder that can be used ({error}){written_by(meta.get('version'))}"
        ) from error


def _refuse_other_things(place: Path) -> None:
    """What people have beside their encoders, by its name: a missing file is an `OSError` elsewhere."""
    if place.is_dir() and not RunDirectory(place).encoder.exists():
        raise ConfigError(f"{place} is neither a model nor a run that ended: no config.json, no encoder.safetensors")
    if place.is_file() and place.suffix == ".onnx":
        raise ConfigError(f"{place} is an ONNX file, which sofed predict and onnxruntime run; {EXPECTED}")
    if place.is_file() and has_image_name(place.name):
        raise ConfigError(f"{place} is an image; {EXPECTED}")


def rebuilt(state: State, facts: Mapping[str, Any]) -> FrozenEncoder:
    """The encoder of these weights; a `ConfigError` says why there is none."""
    _refuse_other_labels(facts.get("fine_tuned"))
    architecture = facts.get("architecture")
    if architecture is None:
        raise ConfigError("it has no architecture; expected the encoder.safetensors of a run")
    with torch.device("meta"):  # names, types and shapes only: a few bytes can describe more than a machine can hold
        refuse_other(state, build(architecture, "encoder").state_dict())
    if (name := not_finite(state)) is not None:
        raise ConfigError(f"{name} is not finite")
    backbone: nn.Module = build(architecture, "encoder")
    backbone.load_state_dict(state)
    own = {name: fact for name, fact in facts.items() if name not in OF_CLASSIFIER}
    return FrozenEncoder(backbone, own, _image_size(facts))


def without_head(state: State) -> State:
    """A model's tensors but for those of the classifier on top."""
    return {name: tensor for name, tensor in state.items() if not name.startswith(HEAD)}


def refuse_other(state: State, expected: State) -> None:
    """Before they are loaded: a weight of a single number would be broadcast silently."""
    if (difference := unlike(state, expected, "those of its architecture")) is not None:
        raise ConfigError(f"its weights are of another architecture: {difference}")


@cache
def _warn_of_another_size(given: tuple[int, int], trained: tuple[int, int] | None) -> None:
    """Once for every size: a network answers at any, and nothing else would tell."""
    if trained is None or given == trained:
        return
    sizes = f"{given[0]} x {given[1]} pixels, and the encoder was trained at {trained[0]} x {trained[1]}"
    remedy = "scale them, or give paths or pictures of PIL, which are scaled"
    warnings.warn(f"the arrays have {sizes}: the answers may be wrong; {remedy}", stacklevel=4)  # who called features


def _image_size(meta: Mapping[str, Any]) -> tuple[int, int] | None:
    match meta.get("image_size"):
        case None:
            return None
        case [int() as height, int() as width] if min(height, width) > 0 and max(height, width) <= LARGEST_IMAGE:
            return height, width
        case other:
            raise ConfigError(f"image_size={str(other)[:50]}: expected [height, width]")


def _refuse_other_labels(fine_tuned: object) -> None:
    """The one fact of training that a warning depends on (`classifier/warnings.py`)."""
    match fine_tuned:
        case None:
            pass
        case {"images": int() as images, "classes": int() as classes} if 0 < classes <= images <= MOST_LABELS:
            pass
        case other:
            raise ConfigError(f"fine_tuned={str(other)[:50]}: expected the numbers of images and classes")
