"""Overrides as text: values in Hydra's grammar, and which of two overrides of a key counts."""

import re
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path

from sofed_flwr.core.errors import ConfigError


def quoted(text: str) -> str:
    """A string of Hydra's grammar, in which a bare one must not hold spaces or brackets.

    A backslash is itself there, except before a quote.
    """
    return "'" + re.sub(r"(\\*)('|\Z)", lambda found: 2 * found[1] + found[2].replace("'", "\\'"), text) + "'"


def literal(value: object) -> str:
    """A Python value in Hydra's grammar."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case Integral():
            return str(int(value))
        case Real():
            return str(float(value))
        case str() | Path():
            return quoted(str(value))
        case list() | tuple():
            return f"[{','.join(map(literal, value))}]"
        case Mapping():
            return f"{{{','.join(f'{key}:{literal(inner)}' for key, inner in value.items())}}}"
    raise ConfigError(f"{type(value).__name__}: not a value of a configuration; expected text, numbers, lists of them")


def merged(earlier: Sequence[str], later: Sequence[str]) -> list[str]:
    """The later override of a key replaces the earlier one: Hydra refuses to choose a group's component twice."""
    return list({override.partition("=")[0]: override for override in [*earlier, *later]}.values())
