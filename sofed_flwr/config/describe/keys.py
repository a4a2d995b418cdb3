"""Every key that can be set, by its name: which groups there are, what they offer, and where a key has its value."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from sofed_flwr.config.describe.annotated_yaml import AnnotatedYaml, Entry, read
from sofed_flwr.config.own_yamls import conf
from sofed_flwr.core.errors import ConfigError

ROOT = "config.yaml"


@dataclass(frozen=True)
class Group:
    """A folder of conf/ from which one yaml is chosen; `comment` is what config.yaml says of it."""

    name: str
    default: str
    choices: list[str]
    comment: str


def groups() -> dict[str, Group]:
    """In the order of config.yaml's defaults list; of their yamls only the names are read."""
    return {
        entry.key: Group(entry.key, entry.value, choices(entry.key), entry.comment)
        for entry in read(conf(), ROOT).defaults
        if entry.key and " " not in entry.key
    }


def choices(group: str) -> list[str]:
    """Names of the yamls that a group has."""
    return sorted(file.stem for file in (conf() / group).glob("*.yaml"))


def chosen(group: str, name: str, within: tuple[str, ...] = ()) -> AnnotatedYaml:
    """A group's yaml, with the values of the yamls it includes: its parent's, and those of components within it.

    `within` are the yamls that include this one.
    """
    if name in within:
        raise ConfigError(f"{group}/{name}.yaml includes itself")
    own = read(conf(), f"{group}/{name}.yaml")
    entries = {entry.key: entry for part in _included(group, own, (*within, name)) for entry in part.entries}
    return replace(own, entries=list((entries | {entry.key: entry for entry in own.entries}).values()))


def _included(group: str, file: AnnotatedYaml, within: tuple[str, ...]) -> Iterator[AnnotatedYaml]:
    for entry in file.defaults:
        if not entry.key and entry.value != "_self_":
            yield chosen(group, entry.value, within)
        elif entry.key.startswith("/"):  # /views@views: strong
            other, _, package = entry.key[1:].partition("@")
            yield read(conf(), f"{other}/{entry.value}.yaml", f"{group}.{package}.")


def top_level() -> list[Entry]:
    """What config.yaml itself sets."""
    return read(conf(), ROOT).entries


def settable() -> list[str]:
    """Every key, whichever yaml of its group it belongs to."""
    parts = [chosen(group.name, name) for group in groups().values() for name in group.choices]
    return list(dict.fromkeys(entry.key for entries in [top_level(), *(p.entries for p in parts)] for entry in entries))


def settings() -> list[Entry]:
    """Every value of every yaml, wherever it is set."""
    files = sorted(file.relative_to(conf()).as_posix() for file in conf().rglob("*.yaml"))
    return [entry for file in [ROOT, *(name for name in files if name != ROOT)] for entry in read(conf(), file).entries]
