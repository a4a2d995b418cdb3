"""`pretrained=FILE|DIR`: the weights with which a federation begins, instead of random ones.

An encoder of ours (its file, a model directory or a run's) must have the architecture that the run asks for: two
encoders may agree in every shape and still be different networks, as with the stems `cifar` and `half`. Weights of
others, such as torchvision's and timm's ResNet-18, are names and shapes only. Of those, each layer that agrees is
taken whole, and the other layers keep their initial values. Only safetensors are read: a pickle runs code.
"""

import hashlib
import logging
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from torch import Tensor, nn

from sofed_flwr.config.instantiate import Component
from sofed_flwr.core.errors import ConfigError, DamagedFileError
from sofed_flwr.core.records import State
from sofed_flwr.core.redaction import redacted
from sofed_flwr.encoder import load_encoder
from sofed_flwr.server import batch_norm
from sofed_flwr.server.gate import unusable
from sofed_flwr.storage.model_files import WEIGHTS
from sofed_flwr.storage.plain_files import read_plain_file
from sofed_flwr.storage.tensor_file import from_bytes, has_own_head, has_safetensors_head

FILES = (WEIGHTS, "encoder.safetensors")
"""In a directory: that of a model, that of a run."""
LARGEST = 2**31
"""Bytes; a ResNet-18 has 45 MB."""
NAMES_SHOWN = 4
LONGEST_NAME = 60
"""Characters of a tensor's name."""

log = logging.getLogger(__name__)


class Match(NamedTuple):
    """What a network takes from a file, the names of its own tensors that stay, those of the file that are not used."""

    taken: State
    kept: list[str]
    unused: list[str]


def load_pretrained(given: str, backbone: nn.Module, architecture: Component) -> dict[str, str]:
    """Load what `given` holds into the backbone; how a result names it: without its path, which is its owner's."""
    place = Path(given)
    try:
        file = _file_of(place)
        content = read_plain_file(file, LARGEST)
        if has_own_head(content):
            taken = _own(place if place.is_dir() and file.name == WEIGHTS else file, architecture)
        else:
            taken = _agreeing(_foreign(content), backbone.state_dict(), file.name)
        if (fault := unusable(taken) or batch_norm.fault(taken, taken)) is not None:
            raise ConfigError(fault)
        backbone.load_state_dict(taken, strict=False)
    except (ConfigError, DamagedFileError) as error:
        raise ConfigError(f"pretrained={given}: {error}") from error
    except OSError as error:
        raise ConfigError(f"pretrained={given}: cannot be read ({error.strerror})") from error
    return {"name": redacted(place.name, LONGEST_NAME), "sha256": hashlib.sha256(content).hexdigest()}


def match(weights: State, expected: State) -> Match:
    """Layer by layer: half of a BatchNorm would be worse than none; only the count of its batches may be missing."""
    layers: dict[str, list[str]] = defaultdict(list)
    for name, tensor in expected.items():
        if tensor.is_floating_point():
            layers[_layer(name)].append(name)
    whole = {
        layer for layer, names in layers.items() if all(_fits(weights.get(name), expected[name]) for name in names)
    }
    taken = {
        name: weights[name].to(tensor.dtype)
        for name, tensor in expected.items()
        if _layer(name) in whole and _fits(weights.get(name), tensor)
    }
    return Match(taken, sorted(expected.keys() - taken.keys()), sorted(weights.keys() - taken.keys()))


def _agreeing(weights: State, expected: State, name: str) -> State:
    """What can be taken, and what cannot is said."""
    taken, kept, unused = match(weights, expected)
    if not taken:
        ours = f"of this encoder's {len(expected)} ({_first(kept)})"
        raise ConfigError(f"none of its {len(weights)} tensors ({_first(unused)}) has the name and shape of one {ours}")
    log.info("pretrained: %d of the encoder's %d tensors are from %s", len(taken), len(expected), redacted(name))
    if kept:
        log.warning("pretrained: %d keep their initial values: %s", len(kept), _first(kept))
    if unused:
        log.warning("pretrained: %d tensors of the file are not used: %s", len(unused), _first(unused))
    return taken


def _own(place: Path, architecture: Component) -> State:
    encoder = load_encoder(place)
    theirs = encoder.facts["architecture"]
    if theirs != architecture:
        raise ConfigError(f"its encoder is {_described(theirs)}, that of this run {_described(architecture)}")
    log.info("pretrained: the whole encoder is from %s", redacted(place.name))
    return encoder.backbone.state_dict()


def _foreign(content: bytes) -> State:
    if not has_safetensors_head(content):
        remedy = (
            "pickled weights (.pt, .pth, .bin) can run code and are not read, save them by safetensors.torch.save_file"
        )
        raise ConfigError(f"is not a safetensors file; {remedy}")
    try:
        return from_bytes(content)
    except DamagedFileError as error:
        raise ConfigError(f"is a damaged safetensors file ({redacted(error)})") from error


def _file_of(place: Path) -> Path:
    """The file with the weights."""
    within = [place / name for name in FILES if (place / name).is_file()] if place.is_dir() else [place]
    if not within:
        raise ConfigError(f"a directory without {' or '.join(FILES)}")
    if not within[0].exists():
        raise ConfigError("there is no such file or directory on the server's machine")
    return within[0]


def _layer(name: str) -> str:
    return name.rpartition(".")[0]


def _fits(tensor: Tensor | None, expected: Tensor) -> bool:
    return (
        tensor is not None
        and tensor.shape == expected.shape
        and tensor.is_floating_point() == expected.is_floating_point()
    )


def _first(names: Sequence[str]) -> str:
    """In the file names are a stranger's."""
    shown = [redacted(name, LONGEST_NAME) for name in names[:NAMES_SHOWN]]
    return ", ".join([*shown, *([f"and {len(names) - NAMES_SHOWN} more"] if len(names) > NAMES_SHOWN else [])])


def _described(architecture: Component) -> str:
    settings = ", ".join(f"{key}={architecture[key]}" for key in sorted(architecture) if key != "_target_")
    return redacted(f"{str(architecture['_target_']).rpartition('.')[2]}({settings})")
