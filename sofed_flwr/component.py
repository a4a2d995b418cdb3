"""Components from their yaml: `_target_` is the registry, so adding one is a file and a yaml, and no edit elsewhere.

Hydra has an `instantiate` of its own; this one needs no Hydra, which a device then need not have, and turns a
component's complaint into a sentence about the user's key.
"""

import importlib
import inspect
from typing import Any

from pydantic import ValidationError

Component = dict[str, Any]


class ConfigError(ValueError):
    """The user's configuration cannot be run: one sentence with the key, the value and what is allowed."""


def build(node: Component, key: str, **more: Any) -> Any:
    """Call the class or function named by `_target_` with the rest of the node, nested nodes first.

    A component refuses a bad argument by pydantic or by a `ValueError` that begins with the argument's name.
    """
    arguments = {
        name: build(value, f"{key}.{name}") if isinstance(value, dict) and "_target_" in value else value
        for name, value in node.items()
        if name != "_target_"
    }
    target = _locate(str(node["_target_"]), key)
    _refuse_unknown(target, arguments, key)
    try:
        return target(**arguments, **more)
    except ValidationError as error:
        raise ConfigError(first_complaint(error, f"{key}.")) from error
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{key}.{error}") from error


def first_complaint(error: ValidationError, prefix: str = "") -> str:
    """pydantic's first error in one line: key, value, what is allowed."""
    first = error.errors()[0]
    key = prefix + ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return f"{key}={first['input']}: there is no such key"
    if first["type"] in ("missing", "missing_argument"):
        return f"{key} is missing"
    return f"{key}={first['input']}: {first['msg'][0].lower()}{first['msg'][1:]}"


def _refuse_unknown(target: Any, arguments: Component, key: str) -> None:
    """pydantic's dataclasses pass over arguments they do not have; a user's typing error must not be passed over."""
    parameters = inspect.signature(target).parameters.values()
    known = {parameter.name for parameter in parameters}
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return
    for name in arguments.keys() - known:
        has = ", ".join(sorted(known & arguments.keys())) or "no keys"
        raise ConfigError(f"{key}.{name}={arguments[name]}: there is no such key; {key} has {has}")


def _locate(target: str, key: str) -> Any:
    module, _, name = target.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"{key}._target_={target}: cannot be imported ({error})") from error
