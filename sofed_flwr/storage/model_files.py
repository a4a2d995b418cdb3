"""A model people take away: one directory, in the layout that timm and the Hugging Face hub know.

model.safetensors   the weights, by torchvision's names; a classifier's head is `fc`
config.json         timm's fields, and under `sofed` what it takes to rebuild the model here
README.md           the model card

A directory appears whole or not at all: its files are written beside it and moved together. It replaces an empty one or
another model, which is moved aside first; a power cut between the two moves leaves that one under a hidden name.
Whatever is read may be anybody's: only plain files are opened, and no more of them than a model can have.
"""

import json
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from sofed_flwr.core.errors import ConfigError, DamagedFileError
from sofed_flwr.core.records import State
from sofed_flwr.storage.atomic_files import sync_directory, write_atomically
from sofed_flwr.storage.plain_files import read_plain_file
from sofed_flwr.storage.tensor_file import decode, encode

WEIGHTS, CONFIG, CARD = "model.safetensors", "config.json", "README.md"
OURS = "sofed"
"""The key of config.json that other tools pass over."""
LARGEST = {WEIGHTS: 2**32, CONFIG: 2**22}
"""Bytes; a ResNet-18 has 45 MB, and 10,000 classes with long names have 1 MB of them."""


def write_model_files(directory: Path, weights: State, config: Mapping[str, Any], card: str) -> None:
    """After this, `directory` is that model, whatever happens; an `OSError` leaves things as they were."""
    place = Path(os.path.realpath(directory))
    refuse_to_replace(place)
    described = _as_json(config)
    place.parent.mkdir(parents=True, exist_ok=True)
    new, old = (place.with_name(f".{place.name}.{uuid.uuid4().hex}.{end}") for end in ("tmp", "old"))
    try:
        new.mkdir()
        write_atomically(new / WEIGHTS, encode(weights, {}))
        write_atomically(new / CONFIG, described)
        write_atomically(new / CARD, card.encode())
        if place.exists():
            _move(place, old)
        _move(new, place)
    finally:
        if old.exists() and not place.exists():
            old.rename(place)
        for directory in (new, old):
            _remove(directory)


def read_model_files(directory: Path) -> tuple[State, dict[str, Any]]:
    """The weights and config.json, of which `sofed` is a mapping; anything else is a `DamagedFileError`."""
    try:
        config = _read_config(directory)
        return decode(_read(directory / WEIGHTS)).tensors, config
    except DamagedFileError as error:
        raise DamagedFileError(f"{directory} is not a model of sofed, or a damaged one ({error})") from error


def is_model_directory(path: Path) -> bool:
    """Whether somebody meant it to be one; a run's directory has other names."""
    return path.is_dir() and any((path / name).exists() for name in (CONFIG, WEIGHTS))


def _read_config(directory: Path) -> dict[str, Any]:
    try:
        config = json.loads(_read(directory / CONFIG), parse_constant=_refuse_constant)
    except DamagedFileError:
        raise
    except (ValueError, RecursionError) as error:
        raise DamagedFileError(f"{CONFIG} is not valid JSON: {str(error)[:100]}") from error
    if not isinstance(config, dict) or not isinstance(config.get(OURS), dict):
        raise DamagedFileError(f"{CONFIG} says nothing under {OURS}")
    return config


def _as_json(config: Mapping[str, Any]) -> bytes:
    """What can be read again; an encoder file of somebody else may carry facts that cannot."""
    try:
        content = (json.dumps(config, indent=2, allow_nan=False) + "\n").encode()
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"the model's facts cannot be written as JSON ({error})") from error
    if len(content) > LARGEST[CONFIG]:
        raise ConfigError(f"the model's facts have {len(content)} bytes, expected at most {LARGEST[CONFIG]}")
    return content


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


def _read(path: Path) -> bytes:
    try:
        return read_plain_file(path, LARGEST[path.name])
    except FileNotFoundError as error:
        raise DamagedFileError(f"{path.name} is missing") from error


def refuse_to_replace(place: Path) -> None:
    """Only an empty directory or a model of ours, with nothing beside it that somebody may miss."""
    if not os.path.lexists(place):
        return
    if not place.is_dir():
        raise ConfigError(f"{place} is a file; expected a new directory, an empty one or a model to replace")
    if place == Path.cwd():
        raise ConfigError(f"{place} is the current directory, which cannot be replaced; expected another one")
    names = {path.name for path in place.iterdir()}
    if not names:
        return
    if others := sorted(names - {WEIGHTS, CONFIG, CARD}):
        raise ConfigError(f"{place} holds {others[0]}, which no model has; expected a new or an empty directory")
    try:
        _read_config(place)
    except DamagedFileError as error:
        raise ConfigError(f"{place} is not empty and not a model of sofed ({error})") from error


def _move(directory: Path, to: Path) -> None:
    directory.rename(to)
    sync_directory(to.parent)


def _remove(directory: Path) -> None:
    if directory.is_dir():
        for path in directory.iterdir():
            path.unlink()
        directory.rmdir()
