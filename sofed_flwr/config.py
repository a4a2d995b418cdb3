"""Hydra overrides -> one validated `RunConfig`. Only this file knows Hydra, and turns its errors into sentences."""

import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from sofed_flwr.component import ConfigError
from sofed_flwr.run_config import RunConfig

CONF = Path(__file__).resolve().parent.parent / "conf"
RESUMABLE = {"rounds", "workers", "out", "resume", "force", "overrides", "tracking"}
"""Keys a resumed run may change: none changes what a round computes, except that a schedule depends on `rounds`."""


def compose(overrides: str | Sequence[str]) -> RunConfig:
    """Overrides -> configuration; with `resume=DIR` those of DIR come first and must not be contradicted."""
    given = shlex.split(overrides) if isinstance(overrides, str) else list(overrides)
    config = _resolve(given)
    if config.resume is None:
        return config.model_copy(update={"out": str(_absolute(config.out or _default_out()))})
    folder = _absolute(config.resume)
    file = folder / "config.yaml"
    if not file.is_file():
        raise ConfigError(f"resume={config.resume}: there is no run to continue, {file.name} is missing")
    earlier = RunConfig.from_yaml(file.read_text())
    config = _resolve(_merged(earlier.overrides, given))
    _refuse_other(earlier, config)
    return config.model_copy(update={"out": str(folder), "resume": str(folder)})


def sweep(overrides: Sequence[str]) -> list[list[str]]:
    """`a=1,2 b=3` -> one list of overrides per combination."""
    try:
        parsed = OverridesParser.create().parse_overrides(list(overrides))
        return [list(job) for batch in BasicSweeper.split_arguments(parsed, max_batch_size=None) for job in batch]
    except HydraException as error:
        raise ConfigError(_sentence(error, list(overrides))) from error


def _resolve(overrides: list[str]) -> RunConfig:
    try:
        composed = _compose(overrides)
        chosen = composed.hydra.runtime.choices.items()
        choices = {group: name for group, name in chosen if name and not {"/", "@"} & set(group)}
        own = OmegaConf.masked_copy(composed, [str(key) for key in composed if key != "hydra"])
        content: Any = OmegaConf.to_container(own, resolve=True, throw_on_missing=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(_sentence(error, overrides)) from error
    return RunConfig.validated(content | {"choices": choices, "overrides": overrides})


def _compose(overrides: list[str]) -> DictConfig:
    with initialize_config_dir(config_dir=str(CONF), version_base="1.3"):
        return hydra_compose("config", overrides=overrides, return_hydra_config=True)


def _merged(earlier: Sequence[str], later: Sequence[str]) -> list[str]:
    """The later override of a key replaces the earlier one: Hydra refuses to choose a group's component twice."""
    return list({override.partition("=")[0]: override for override in [*earlier, *later]}.values())


def _refuse_other(earlier: RunConfig, config: RunConfig) -> None:
    before, now = _flat(earlier.model_dump()), _flat(config.model_dump())
    free = RESUMABLE if config.optimizer.schedule == "constant" else RESUMABLE - {"rounds"}
    differing = [
        f"{key} (was {before.get(key)}, is {now.get(key)})"
        for key in sorted(before.keys() | now.keys())
        if key.removeprefix("choices.").split(".")[0] not in free and before.get(key) != now.get(key)
    ]
    if differing and not config.force:
        what = f"the run has another configuration, {_hash(before)} instead of {_hash(now)}: {', '.join(differing)}"
        raise ConfigError(f"resume={config.resume}: {what}; force=true continues all the same")


def _hash(flat: Mapping[str, Any]) -> str:
    decisive = {key: value for key, value in flat.items() if key.split(".")[0] not in RESUMABLE}
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:8]


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


def _default_out() -> str:
    return datetime.now().strftime("outputs/%Y-%m-%d/%H-%M-%S")


def _absolute(path: str) -> Path:
    return Path(path).expanduser().resolve()


def _sentence(error: Exception, overrides: list[str]) -> str:
    """Hydra's complaint as one line about the user's key; what is not foreseen keeps Hydra's words."""
    if isinstance(error, MissingConfigException) and error.missing_cfg_file and error.options:
        group, _, name = error.missing_cfg_file.rpartition("/")
        return f"{group}={name}: there is no such {group}; choose one of {', '.join(error.options)}"
    if isinstance(error, MissingMandatoryValue):
        return f"{error.full_key} is missing; give it as {error.full_key}=VALUE"
    if isinstance(error, OverrideParseException):
        return f"{error.override}: not an override; expected KEY=VALUE"
    if isinstance(error, ConfigCompositionException) and isinstance(error.__cause__, OmegaConfBaseException):
        return _no_such_key(str(error).split("'")[1], overrides)
    return " ".join(str(error).split())


def _no_such_key(key: str, overrides: list[str]) -> str:
    """Name the keys there are, found by composing without the wrong one."""
    wrong = [override for override in overrides if override.partition("=")[0] == key]
    place, node = "the top level", _compose([override for override in overrides if override not in wrong])
    for name in key.split("."):
        if not isinstance(node.get(name), DictConfig):
            break
        place, node = name if place == "the top level" else f"{place}.{name}", node[name]
    keys = sorted(str(name) for name in node if name not in ("hydra", "_target_"))
    return f"{wrong[0]}: there is no such key; {place} has {', '.join(keys)}"
