"""Models as directories, for us and for timm (`storage/model_files.py`): written, read, opened from wherever they are.

config.json may be a stranger's. What counts in it is read by type; the architecture is one of ours, and memory is taken
only once the weights are known to be that architecture's (`encoder.py`).
"""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from sofed_flwr.classifier.model import Classifier
from sofed_flwr.classifier.model_card import model_card
from sofed_flwr.classifier.timm_config import timm_config
from sofed_flwr.core.app_files import version, written_by
from sofed_flwr.core.errors import ConfigError, DamagedFileError
from sofed_flwr.core.records import State
from sofed_flwr.core.state_dicts import not_finite, over, under
from sofed_flwr.encoder import HEAD, FrozenEncoder, load_encoder, rebuilt, refuse_other, without_head
from sofed_flwr.storage.model_files import OURS, is_model_directory, read_model_files, write_model_files

Model = Classifier | FrozenEncoder

MOST_CLASSES = 100_000
LONGEST_CLASS = 200
"""Characters of a class's name."""


def write_model(directory: Path, model: Model) -> None:
    """Replaces a model that is there; a directory of anything else is refused."""
    encoder = model.encoder if isinstance(model, Classifier) else model
    weights, ours = encoder.backbone.state_dict(), {**encoder.facts, "version": version()}
    classes: tuple[str, ...] = ()
    if isinstance(model, Classifier):
        classes = model.classes
        weights |= over(HEAD, model.head.state_dict())
        ours |= {"classes": list(classes), "classifier": dict(model.facts)}
    config = {**timm_config(encoder, classes), OURS: ours}
    write_model_files(directory, {name: tensor.cpu() for name, tensor in weights.items()}, config, model_card(config))


def read_model(directory: str | Path) -> Model:
    """What `write_model` wrote; anything else is a `DamagedFileError` that names the directory."""
    state, config = read_model_files(Path(directory))
    facts = config[OURS]
    try:
        encoder, head = rebuilt(without_head(state), facts), under(HEAD, state)
        classes = _classes(config, facts)
        if head and not classes:
            raise ConfigError(f"it has weights of a classifier ({HEAD}) and no classes")
        return _classifier(encoder, head, classes, facts) if classes else encoder
    except ConfigError as error:
        raise DamagedFileError(
            f"{directory} holds no model that can be used ({error}){written_by(facts.get('version'))}"
        ) from error


def load_classifier(directory: str | Path) -> Classifier:
    """The classifier in a model directory."""
    model = open_model(Path(directory))
    if isinstance(model, Classifier):
        return model
    raise ConfigError(f"{directory} is an encoder without classes; sofed fit makes a classifier of it")


def open_model(path: Path) -> Model:
    """A model's directory, or whatever `load_encoder` finds an encoder in."""
    return read_model(path) if is_model_directory(path) else load_encoder(path)


def _classes(config: dict[str, Any], facts: dict[str, Any]) -> list[str]:
    """Names, each once; what timm is told must be the same, or two tools would name one image differently."""
    classes = facts.get("classes", [])
    if (
        not isinstance(classes, list)
        or len(classes) > MOST_CLASSES
        or not all(isinstance(name, str) and 0 < len(name) <= LONGEST_CLASS for name in classes)
        or len(set(classes)) < len(classes)
    ):
        raise ConfigError(f"classes={str(classes)[:50]}: expected different names of 1 to {LONGEST_CLASS} signs")
    stated = (config.get("num_classes"), config.get("label_names", []))
    if stated != (len(classes), classes):
        raise ConfigError("num_classes and label_names are not those of its classes")
    return classes


def _classifier(encoder: FrozenEncoder, head: State, classes: list[str], facts: dict[str, Any]) -> Classifier:
    about = facts.get("classifier")
    if not isinstance(about, dict):
        raise ConfigError(f"classifier={str(about)[:50]}: expected a mapping")
    with torch.device("meta"):
        expected = nn.Linear(encoder.feature_dim, len(classes)).state_dict()
    refuse_other(over(HEAD, head), over(HEAD, expected))
    if (name := not_finite(over(HEAD, head))) is not None:
        raise ConfigError(f"{name} is not finite")
    linear = nn.Linear(encoder.feature_dim, len(classes))
    linear.load_state_dict(head)
    return Classifier(encoder, linear, classes, about)
