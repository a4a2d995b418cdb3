"""The yamls of conf/ as they are written: keys, values as text, and the comments beside them.

A comment explains the value it stands beside, so it is kept there and nowhere else: `sofed config` and
docs/configuration.md read it from here. Nothing is composed and Hydra is not needed, which keeps a shell's completion
fast.
"""

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from sofed_flwr.config.plain_yaml import bytes_of, read_nodes
from sofed_flwr.core.errors import ConfigError
from sofed_flwr.core.redaction import one_line

GLOBAL = "@package _global_"
"""Hydra's word for a file whose keys are those of the top level."""


@dataclass(frozen=True)
class Entry:
    """One value. `target` is the component it is an argument of, empty if it belongs to none."""

    key: str  # as in an override: policy.lazy_interval
    value: str  # as it is written
    comment: str  # beside it, as one line
    file: str  # within conf/
    target: str = ""


@dataclass(frozen=True)
class AnnotatedYaml:
    """One file: the comment it begins with, its values, and the entries of its defaults list as (group, name)."""

    header: list[str]
    entries: list[Entry]
    defaults: list[Entry]


def read(conf: Path, name: str, prefix: str | None = None) -> AnnotatedYaml:
    """`name` is the file's path within `conf`; `prefix` are the keys above its own, by default its group."""
    if ".." in Path(name).parts or not (conf / name).is_file():
        raise ConfigError(f"conf has no {name}")
    text = bytes_of(conf / name).decode(errors="replace")
    lines = text.splitlines()  # where PyYAML ends lines, too: it refuses the other characters that Python splits at
    header = [one_line(line[1:]) for line in itertools.takewhile(lambda line: line.startswith("#"), lines)]
    group = "" if GLOBAL in header or "/" not in name else f"{name.rpartition('/')[0].replace('/', '.')}."
    reader = _Reader(lines, name)
    root = read_nodes(text.encode(), name)
    entries = list(reader.entries(root, group if prefix is None else prefix, ""))
    return AnnotatedYaml([line for line in header if line != GLOBAL], entries, list(reader.defaults(root)))


class _Reader:
    def __init__(self, lines: list[str], file: str) -> None:
        self._lines = lines
        self._file = file

    def entries(self, node: yaml.MappingNode, prefix: str, target: str) -> Iterator[Entry]:
        own = dict(_named(node))
        if isinstance(named := own.pop("_target_", None), yaml.ScalarNode):
            target = named.value
        own.pop("defaults", None)
        for key, value in own.items():
            if isinstance(value, yaml.MappingNode) and not value.flow_style:
                yield from self.entries(value, f"{prefix}{key}.", target)
            else:
                yield self._entry(f"{prefix}{key}", value, target)

    def defaults(self, node: yaml.MappingNode) -> Iterator[Entry]:
        """`- name` has no key; `- group: name` has one."""
        found = dict(_named(node)).get("defaults")
        for item in found.value if isinstance(found, yaml.SequenceNode) else []:
            if isinstance(item, yaml.MappingNode):
                yield from (self._entry(key, value, "") for key, value in _named(item))
            else:
                yield self._entry("", item, "")

    def _entry(self, key: str, value: yaml.Node, target: str) -> Entry:
        """What is shown may be somebody else's."""
        text, comment = one_line(self._text(value)), one_line(self._comment(value.end_mark))
        return Entry(one_line(key), text, comment, self._file, target)

    def _text(self, node: yaml.Node) -> str:
        """Its last line: what takes several is no single value."""
        first = node.start_mark.column if node.start_mark.line == node.end_mark.line else 0
        return self._line(node.end_mark.line)[first : node.end_mark.column]

    def _comment(self, end: yaml.Mark) -> str:
        """After the value, and in the lines below as far as they begin in the same column."""
        found = re.match(r"\s*#", self._line(end.line)[end.column :])
        if found is None:
            return ""
        column = end.column + found.end() - 1
        below = itertools.takewhile(
            lambda line: not line[:column].strip() and line[column : column + 1] == "#", self._lines[end.line + 1 :]
        )
        return " ".join(line[column:].lstrip("# ").strip() for line in [self._line(end.line), *below])

    def _line(self, number: int) -> str:
        """A value of several lines may end after the last one."""
        return self._lines[number] if number < len(self._lines) else ""


def _named(node: yaml.MappingNode) -> Iterator[tuple[str, yaml.Node]]:
    """YAML's keys may be lists, too; nothing here is called so."""
    return ((key.value, value) for key, value in node.value if isinstance(key, yaml.ScalarNode))
