"""Components from their yaml: `_target_` is the registry, so adding one is a file and a yaml, and no edit elsewhere.

The yaml is untrusted: it may come from a copied run directory, an encoder file or a server's task. So a target is
looked up only in this project's package for components of that kind, and must have the methods of that kind. A package
of the user's own is accepted after the user has named it to this process (`trust`); no file and no message can do that.
"""

import importlib
import importlib.util
import inspect
import os
import re
import sys
import typing
from collections.abc import Sequence
from typing import Any, NamedTuple

from pydantic import ValidationError

from sofed_flwr.core.errors import ConfigError

Component = dict[str, Any]
PROJECT = __name__.partition(".")[0]
TRUST = "SOFED_TRUST"
"""The environment variable that holds the packages a user trusts: the processes of a run inherit it."""
PUBLIC = re.compile(r"[A-Za-z]\w*(\.[A-Za-z]\w*)+", re.ASCII)
LONGEST = 100
"""Characters of a value in an error message."""


class Kind(NamedTuple):
    """Package of a kind of component, attributes each must have, and the kind of components in its arguments."""

    package: str
    able: tuple[str, ...]
    inner: str | None = None


KINDS = {
    "dataset": Kind("datasets", ("fingerprint", "load")),
    "partition": Kind("datasets", ("__call__",)),
    "encoder": Kind("models", ("forward", "feature_dim")),
    "method": Kind("methods", ("loss_terms", "shared_state"), inner="views"),
    "views": Kind("views", ("__call__",)),
    "policy": Kind("policies", ("select", "carry_over")),
    "strategy": Kind("strategies", ("aggregate", "state_dict")),
    "codec": Kind("codecs", ("encode", "decode", "max_size")),
    "evaluation": Kind("evaluation", ("due", "run"), inner="evaluator"),
    "evaluator": Kind("evaluation", ("run",)),
    "tracking": Kind("tracking", ("write", "close")),
}
"""By the key of the configuration."""


def build(node: Any, kind: str, key: str | None = None, /, **more: Any) -> Any:
    """Call the class or function named by `_target_` with the rest of the node, nested nodes first.

    A component refuses a bad argument by pydantic or by a `ValueError` that begins with the argument's name. `key` is
    where in the configuration the node stands, if not at the kind's own key.
    """
    key = key or kind
    if not isinstance(node, dict) or not isinstance(node.get("_target_"), str):
        raise ConfigError(f"{key}={_shown(node)}: expected a component, a mapping with the name _target_ in it")
    target = locate(node["_target_"], kind, key)
    inner = KINDS[kind].inner
    arguments = {name: _argument(node[name], inner, f"{key}.{name}") for name in node if name != "_target_"}
    _refuse_unknown(target, arguments, key)
    try:
        return target(**arguments, **more)
    except ValidationError as error:
        raise ConfigError(first_error(error, f"{key}.")) from error
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{key}.{error}") from error


def locate(target: str, kind: str, key: str) -> Any:
    """The component of this kind and name, in an allowed package; names are checked before anything is imported."""
    shown = f"{key}._target_={_shown(target)}"
    homes = (f"{PROJECT}.{KINDS[kind].package}", *_trusted())
    if not PUBLIC.fullmatch(target) or not _is_within(target, homes):
        own = _shown(target.partition(".")[0]) or "PACKAGE"
        remedy = f"if {own} is a package of yours, say --trust {own}, on a device in node config trust"
        raise ConfigError(f"{shown}: not in {' or '.join(homes)}; {remedy}")
    module, _, name = target.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        where = f" ({getattr(error, 'path', None)})"  # a path of this machine, which a server must not see
        raise ConfigError(f"{shown}: cannot be imported ({str(error).replace(where, '')})") from error
    made = _made_by(found)
    if made is None or not _is_within(f"{found.__module__}.{found.__qualname__}", homes):
        raise ConfigError(f"{shown}: neither a class nor a function that says what it returns, defined there")
    if lacking := [ability for ability in KINDS[kind].able if not _declares(made, ability)]:
        raise ConfigError(f"{shown}: not a component of this kind, it has no {lacking[0]}")
    return found


def trust(packages: Sequence[str]) -> None:
    """Accept components of these packages, in this process and in every process it starts."""
    for name in packages:
        if not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", name, re.ASCII):
            raise ConfigError(f"trust={name}: not the name of a package; expected one such as my_package")
        if (top := name.partition(".")[0]) == PROJECT or top in sys.stdlib_module_names:
            whose = "this project" if top == PROJECT else "Python's own library"
            raise ConfigError(f"trust={name}: a part of {whose}, of which only components can be built")
        if not _is_importable(name):
            raise ConfigError(f"trust={name}: no package of this name can be imported; install it or set PYTHONPATH")
    if packages:
        os.environ[TRUST] = ",".join(dict.fromkeys([*_trusted(), *packages]))


def first_error(error: ValidationError, prefix: str = "") -> str:
    """pydantic's first error in one line: key, value, what is allowed."""
    first = error.errors()[0]
    key = prefix + ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return f"{key}={_shown(first['input'])}: there is no such key"
    if first["type"] in ("missing", "missing_argument"):
        return f"{key} is missing"
    return f"{key}={_shown(first['input'])}: {first['msg'][0].lower()}{first['msg'][1:]}"


def _argument(value: Any, inner: str | None, key: str) -> Any:
    """Plain data, or a component of the one kind allowed here; no component may be nested deeper."""
    if inner and isinstance(value, dict) and "_target_" in value:
        return build(value, inner, key)
    within = [value]
    while within:
        part = within.pop()
        if isinstance(part, dict) and "_target_" in part:
            raise ConfigError(f"{key}={_shown(value)}: no component belongs here")
        within += part.values() if isinstance(part, dict) else part if isinstance(part, list | tuple) else ()
    return value


def _refuse_unknown(target: Any, arguments: Component, key: str) -> None:
    """pydantic's dataclasses ignore unknown arguments; a typing error must not be ignored."""
    parameters = inspect.signature(target).parameters.values()
    known = {parameter.name for parameter in parameters}
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return
    for name in arguments.keys() - known:
        has = ", ".join(sorted(known & arguments.keys())) or "no keys"
        raise ConfigError(f"{key}.{name}={_shown(arguments[name])}: there is no such key; {key} has {has}")


def _made_by(found: Any) -> type | None:
    if not inspect.isfunction(found):
        return found if isinstance(found, type) else None
    try:
        made = typing.get_type_hints(inspect.unwrap(found)).get("return")
    except (NameError, TypeError):
        return None
    return made if isinstance(made, type) else None


def _declares(made: type, name: str) -> bool:
    return any(name in vars(base) or name in inspect.get_annotations(base) for base in made.__mro__)


def _is_within(name: str, homes: Sequence[str]) -> bool:
    return any(name.startswith(f"{home}.") for home in homes)


def _trusted() -> list[str]:
    return [name for name in os.environ.get(TRUST, "").split(",") if name]


def _is_importable(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # the package around it is missing
        return False


def _shown(value: object) -> str:
    text = str(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
