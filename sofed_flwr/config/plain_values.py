"""A configuration holds plain values: no functions to call, and no numbers that other readers would not take."""

import re
from collections.abc import Mapping
from typing import Any

from sofed_flwr.core.errors import ConfigError

RESOLVER = re.compile(r"\$\{.*:", re.DOTALL)
"""May call a function of OmegaConf's, as `${oc.env:HOME}` does; a plain `${buffer}` has no colon."""


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """`{"a": {"b": 1}}` -> `{"a.b": 1}`."""
    values: dict[str, Any] = {}
    for key, value in tree.items():
        values |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return values


def refuse_resolvers(values: Mapping[str, Any]) -> None:
    """Overrides are stored in `config.yaml`, and a resumed run's file is untrusted: no function is called."""
    for key, value in values.items():
        if RESOLVER.search(str(value)):
            raise ConfigError(
                f"{key}={value}: functions such as ${{oc.env:NAME}} are not called; write the value itself"
            )


def refuse_long_numbers(values: Mapping[str, Any]) -> None:
    """Devices and a resumed run read the configuration as plain YAML, which has none (`plain_yaml.py`)."""
    for key, value in values.items():
        if isinstance(value, int) and abs(value) >= 2**63:
            raise ConfigError(f"{key}={value}: a whole number of more than 63 bits")
