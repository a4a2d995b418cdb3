"""Hydra overrides -> one validated `RunConfig`. Only this file knows Hydra, and turns its errors into sentences."""

import re
import shlex
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from threading import Lock
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException
from yaml import YAMLError

from sofed_flwr.config.override_text import merged
from sofed_flwr.config.own_yamls import conf
from sofed_flwr.config.plain_yaml import bytes_of, flat, refuse_long_numbers, refuse_resolvers
from sofed_flwr.config.schema import RunConfig
from sofed_flwr.core.app_files import version
from sofed_flwr.core.errors import ConfigError
from sofed_flwr.core.suggestion import did_you_mean

UNUSABLE = (HydraException, ValueError, RecursionError)
"""Of overrides: Hydra's parser leaves numbers of thousands of digits and lists of thousands of levels to Python."""
_HYDRA = Lock()
"""Hydra has one state for all threads of a process."""


def compose(overrides: str | Sequence[str]) -> RunConfig:
    """Overrides -> configuration; with `resume=DIR` those of DIR come first and must not be contradicted."""
    given = _split(overrides) if isinstance(overrides, str) else list(overrides)
    place = _values(given).get("resume")
    if place is None:
        config = _resolve(given)
        out = config.out or datetime.now().strftime("outputs/%Y-%m-%d/%H-%M-%S")
        return config.model_copy(update={"out": str(_absolute(out))})
    folder = _absolute(str(place))
    file = folder / "config.yaml"
    if not file.is_file():
        raise ConfigError(f"resume={place}: there is no run to continue, {file.name} is missing")
    earlier = RunConfig.from_yaml(bytes_of(file), f"resume={place}: {file.name}")
    refuse_reach(earlier.overrides, f"resume={place}: {file.name}")
    lasting = [text for text in earlier.overrides if not text.startswith(("force=", "restart="))]
    config = _resolve(merged(lasting, given))
    _refuse_other(earlier, config)
    return config.model_copy(update={"out": str(folder), "resume": str(folder)})


def sweep(overrides: Sequence[str]) -> list[list[str]]:
    """`a=1,2 b=3` -> one list of overrides per combination."""
    try:
        parsed = OverridesParser.create().parse_overrides(list(overrides))
        return [list(job) for batch in BasicSweeper.split_arguments(parsed, max_batch_size=None) for job in batch]
    except UNUSABLE as error:
        raise ConfigError(_sentence(error, list(overrides))) from error


def _split(overrides: str) -> list[str]:
    try:
        return shlex.split(overrides)
    except ValueError as error:
        raise ConfigError(f"overrides={overrides}: {str(error).lower()}") from error


def _values(overrides: Sequence[str]) -> dict[str, Any]:
    """Key or group -> value, the last one of each."""
    try:
        parsed = OverridesParser.create().parse_overrides(list(overrides))
        return {override.key_or_group: override.value() for override in parsed}
    except UNUSABLE as error:
        raise ConfigError(_sentence(error, list(overrides))) from error


def refuse_reach(overrides: Sequence[str], what: str) -> None:
    """Overrides from a file may set keys of a run only: Hydra's own keys import modules and read other files."""
    groups = {path.name for path in conf().glob("*/")}
    for key, value in _values(overrides).items():
        known = re.split("[./@]", key)[0] in RunConfig.model_fields.keys() | groups
        group = key.split("@")[0]
        chooses_a_file = "/" in group or group in groups
        if not known or (chooses_a_file and not re.fullmatch(r"[\w-]+", str(value))):
            raise ConfigError(f"{what} holds the override {key}={value}, which is not one of a run")


def _resolve(overrides: list[str]) -> RunConfig:
    try:
        composed = _compose(overrides)
        chosen = composed.hydra.runtime.choices.items()
        choices = {group: name for group, name in chosen if name and not {"/", "@"} & set(group)}
        own = OmegaConf.masked_copy(composed, [str(key) for key in composed if key != "hydra"])
        content: Any = OmegaConf.to_container(own, resolve=False)
        refuse_resolvers(flat(content))
        content = OmegaConf.to_container(own, resolve=True, throw_on_missing=True)
        refuse_long_numbers(flat(content))
    except (OmegaConfBaseException, *UNUSABLE) as error:
        raise ConfigError(_sentence(error, overrides)) from error
    config = RunConfig.validated(content | {"choices": choices, "overrides": overrides, "version": version()})
    if config.pretrained is None:
        return config
    # a link stays one: in a cache of downloads it leads to a file without a name
    return config.model_copy(update={"pretrained": str(Path(config.pretrained).expanduser().absolute())})


def _compose(overrides: list[str]) -> DictConfig:
    with _HYDRA, initialize_config_dir(config_dir=str(conf()), version_base="1.3"):
        try:
            return hydra_compose("config", overrides=overrides, return_hydra_config=True)
        except (ValueError, YAMLError) as error:  # of a yaml of the user's own
            raise HydraException(str(error)) from error


def _refuse_other(earlier: RunConfig, config: RunConfig) -> None:
    before, now = flat(earlier.model_dump()), flat(config.model_dump())
    free = RunConfig.resumable() - (set() if config.optimizer.schedule == "constant" else {"rounds"})
    differing = [
        f"{key} (was {before.get(key)}, is {now.get(key)})"
        for key in sorted(before.keys() | now.keys())
        if not {key, key.removeprefix("choices.").split(".")[0]} & free and before.get(key) != now.get(key)
    ]
    if differing and not config.force:
        what = f"the run has another configuration: {', '.join(differing)}"
        raise ConfigError(f"resume={config.resume}: {what}; force=true continues all the same")


def _absolute(path: str) -> Path:
    return Path(path).expanduser().resolve()


def _sentence(error: Exception, overrides: list[str]) -> str:
    """Hydra's error as one line about the user's key; an unknown error keeps Hydra's text."""
    if isinstance(error, MissingConfigException) and error.missing_cfg_file and error.options:
        group, _, name = error.missing_cfg_file.rpartition("/")
        meant = did_you_mean(name, error.options, before=f"{group}=")
        return f"{group}={name}: there is no such {group}; choose one of {', '.join(error.options)}{meant}"
    if isinstance(error, MissingMandatoryValue):
        return f"{error.full_key} is missing; give it as {error.full_key}=VALUE"
    if isinstance(error, OverrideParseException):
        return f"{error.override}: not an override; expected KEY=VALUE"
    if isinstance(error, ConfigCompositionException) and (key := re.match("Could not override '(.+?)'", str(error))):
        return _no_such_key(key[1], overrides)
    if isinstance(error, RecursionError):
        return "an override has too many levels of brackets"
    if isinstance(error, ValueError) and "digits" in str(error):
        return "an override holds a number of more than 4300 digits"
    return " ".join((str(error) or str(error.__cause__)).split())


def _no_such_key(key: str, overrides: list[str]) -> str:
    """Name the existing keys, found by composing without the wrong one."""
    wrong = [override for override in overrides if override.partition("=")[0] == key]
    try:
        place, node = "the top level", _compose([override for override in overrides if override not in wrong])
    except HydraException as another:
        return _sentence(another, [override for override in overrides if override not in wrong])
    meant = did_you_mean(key, _names(OmegaConf.to_container(node, resolve=False)))
    for name in key.split("."):
        if not isinstance(node.get(name), DictConfig):
            break
        place, node = name if place == "the top level" else f"{place}.{name}", node[name]
    keys = sorted(str(name) for name in node if name not in ("hydra", "_target_"))
    return f"{wrong[0]}: there is no such key; {place} has {', '.join(keys) or 'no keys'}{meant}"


def _names(tree: Any) -> list[str]:
    """Every key, sections and groups included."""
    return list(dict.fromkeys(".".join(key.split(".")[:depth]) for key in flat(tree) for depth in range(1, 9)))
