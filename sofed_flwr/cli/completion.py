"""What a shell offers at the tab key: groups, their choices and keys, read from the yamls without Hydra.

bash makes `=` a word of its own: there, what stands before it comes as the words before.
"""

import re
from collections.abc import Iterable, Sequence

import typer

from sofed_flwr.core.errors import ConfigError


def complete_override(context: typer.Context, incomplete: str) -> list[str]:
    """`pol` -> policy= and policy.; `policy=` -> its choices; `optimizer.` -> its keys."""
    return _offered(context.params.get("overrides") or [], incomplete)


def complete_key(incomplete: str) -> list[str]:
    """What `sofed config` explains."""
    return [name.removesuffix("=") for name in _offered([], incomplete)]


def complete_table(incomplete: str) -> list[str]:
    """Every table and figure of the paper is an experiment."""
    return [name.removeprefix("experiment=") for name in _starting(f"experiment={incomplete}", _names())]


def _offered(before: Sequence[str], incomplete: str) -> list[str]:
    names = _names()
    apart = _typed_apart(list(before), incomplete, names)
    return [rest for name in _continued(apart + incomplete, names) if (rest := name[len(apart) :])]


def _typed_apart(before: list[str], incomplete: str, names: Iterable[str]) -> str:
    """What bash has split off: `policy =` before `fi`. An `=` at the end does not arrive at all."""
    if len(before) > 1 and before[-1] == "=":
        return f"{before[-2]}="
    group = f"{before[-1]}=" if before and not incomplete else "="
    return group if any(name.startswith(group) for name in names) else ""


def _continued(typed: str, names: list[str]) -> list[str]:
    kept, comma, last = typed.rpartition(",")  # of a sweep: policy=fifo,imp
    if comma:
        key = f"{kept.partition('=')[0]}="
        return [f"{kept},{name.removeprefix(key)}" for name in _starting(key + last, names)]
    found = _starting(typed, names)
    heads = list(dict.fromkeys(re.sub(r"(?<=[.=]).*", "", name, count=1) for name in found))
    return found if len(heads) == 1 or set(".=") & set(typed) else heads


def _starting(typed: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(typed)]


def _names() -> list[str]:
    from sofed_flwr.config.describe.keys import groups, settable

    try:
        chosen = [f"{group.name}={choice}" for group in groups().values() for choice in group.choices]
        return [*chosen, *(f"{key}=" for key in settable())]
    except (ConfigError, OSError):  # nothing to say at a prompt
        return []
