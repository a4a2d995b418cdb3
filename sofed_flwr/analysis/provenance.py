"""Which images an encoder was trained on: the overrides that load the same images.

The encoder's file records them without paths (`server/training_images.py`), `config.yaml` of the run directory with
them. Both files are untrusted. So only the name of a dataset and plain values of its settings are read, the number of
images is limited, and a file alone never starts a download.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sofed_flwr.config.instantiate import Component
from sofed_flwr.config.override_text import literal
from sofed_flwr.config.plain_yaml import bytes_of
from sofed_flwr.config.schema import RunConfig
from sofed_flwr.core.errors import ConfigError

MOST_IMAGES = 100_000
"""The largest number that a file may have in the settings of a dataset."""


def training_data(encoder: Path, facts: Mapping[str, Any]) -> list[str]:
    """Overrides that choose the images an encoder was trained on; none if neither its file nor its run records them."""
    run = _run_beside(encoder, facts.get("architecture"))
    if run is not None:
        return _overrides(run.choices.get("dataset"), run.dataset, run.subset.model_dump())
    data = facts.get("data")
    if data is None:
        return []
    if not isinstance(data, dict) or not all(isinstance(data.get(part), dict) for part in ("settings", "subset")):
        raise ConfigError(f"{encoder}: its record of the training data cannot be read; give dataset=NAME")
    return _overrides(data.get("dataset"), data["settings"], data["subset"])


def _run_beside(encoder: Path, architecture: Component | None) -> RunConfig | None:
    """The configuration of the run the encoder lies in; a file of that name may have nothing to do with it."""
    file = (encoder if encoder.is_dir() else encoder.parent) / "config.yaml"
    try:
        config = RunConfig.from_yaml(bytes_of(file), file.name)
    except (ConfigError, OSError):
        return None
    return config if config.encoder == architecture else None


def _overrides(name: object, settings: Mapping[str, Any], subset: Mapping[str, Any]) -> list[str]:
    if not isinstance(name, str) or not re.fullmatch(r"[\w-]{1,50}", name):
        raise ConfigError(f"the encoder was trained on dataset={str(name)[:50]}; give dataset=NAME of one there is")
    own = {f"dataset.{key}": value for key, value in settings.items() if key != "_target_"}
    parts = {f"subset.{key}": value for key, value in subset.items()}
    unwanted = {"dataset.download": False} if "dataset.download" in own else {}
    return [f"dataset={name}", *(f"{key}={_value(key, value)}" for key, value in (own | parts | unwanted).items())]


def _value(key: str, value: object) -> str:
    plain = value is None or isinstance(value, bool | int | float) or (isinstance(value, str) and "${" not in value)
    large = isinstance(value, int | float) and not abs(value) <= MOST_IMAGES
    if not plain or large or not re.fullmatch(r"\w+\.\w+", key):
        raise ConfigError(f"the encoder was trained with {key}={str(value)[:50]}; give dataset=NAME and its settings")
    return literal(value)
