"""What a key means, which values it takes, and where it is set: for `sofed config KEY` and docs/configuration.md.

Meaning and type have one home each. Keys of the schema: the text below the field. Arguments of a component: the comment
beside the value in its yaml, and the annotation in its signature.
"""

import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter
from pydantic.errors import PydanticUserError

from sofed_flwr.config.describe.annotated_yaml import Entry
from sofed_flwr.config.describe.keys import Group, chosen, groups, top_level
from sofed_flwr.config.describe.types_in_words import in_words
from sofed_flwr.config.instantiate import KINDS, locate
from sofed_flwr.config.schema import RunConfig
from sofed_flwr.core.errors import ConfigError

PAPER = re.compile(r"paper(?:, (?=[^:]+:)|: )")
"""How a clause of a comment begins that has the paper's value."""


@dataclass(frozen=True)
class Explained:
    """One key; `remark` says why it has its value, `choices` for which yamls of its group there is such a key."""

    key: str
    meaning: str
    type: str
    default: str = ""
    remark: str = ""
    paper: str = ""
    file: str = ""
    choices: list[str] = field(default_factory=list)

    @property
    def may_change(self) -> bool:
        """When its run is resumed."""
        return bool({self.key, self.key.partition(".")[0]} & RunConfig.resumable())


def sections() -> dict[str, list[Explained]]:
    """Keys that are no component's, by the section they belong to; empty: the top level's own.

    A section is itself the first of its keys.
    """
    schema = RunConfig.model_json_schema()
    written = {entry.key: entry for entry in [*top_level(), *_of_groups()]}
    names = {key.partition(".")[0] for key in written}
    found: dict[str, list[Explained]] = {"": []}
    for name, node in schema["properties"].items():
        if name not in names:
            continue
        inner = _section(node, schema["$defs"])
        if inner is None:
            found[""].append(_plain(name, node, written))
        else:
            keys = [_plain(f"{name}.{key}", value, written) for key, value in inner["properties"].items()]
            found[name] = [_plain(name, inner, written, ", or null" if "anyOf" in node else ""), *keys]
    return found


def meaning_of(group: Group) -> str:
    """Of a group as a whole: the schema's words, or, where it is no key of the schema, config.yaml's."""
    schema = RunConfig.model_json_schema()
    node = schema["properties"].get(group.name, {})
    return str((_section(node, schema["$defs"]) or node).get("description", group.comment))


def arguments(group: Group) -> list[Explained]:
    """Of all components of a group; what a yaml includes from another one is explained once."""
    found: dict[Entry, list[str]] = {}
    for name in sorted(group.choices, key=lambda name: name != group.default):
        for entry in chosen(group.name, name).entries:
            if entry.target:
                found.setdefault(entry, []).append(name)
    return [_argument(group.name, entry, names) for entry, names in found.items()]


def _of_groups() -> Iterator[Entry]:
    """Of groups whose yamls are sections of the schema: stream, device."""
    for group in groups().values():
        if group.default in group.choices and group.name in RunConfig.model_fields:
            yield from (entry for entry in chosen(group.name, group.default).entries if not entry.target)


def _section(node: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any] | None:
    """What a node refers to, directly or as an alternative to null."""
    for part in [node, *node.get("anyOf", [])]:
        if "$ref" in part:
            return dict(definitions[part["$ref"].rpartition("/")[2]])
    return None


def _plain(key: str, node: Mapping[str, Any], written: Mapping[str, Entry], or_null: str = "") -> Explained:
    meaning = " ".join(str(node.get("description", "")).split())
    entry = written.get(key, Entry(key, "", "", ""))
    remark, paper = _clauses(entry.comment)
    return Explained(key, meaning, in_words(node) + or_null, entry.value, remark, paper, entry.file)


def _argument(group: str, entry: Entry, names: list[str]) -> Explained:
    meaning, paper = _clauses(entry.comment)
    return Explained(entry.key, meaning, _type(group, entry), entry.value, "", paper, entry.file, names)


def _type(group: str, entry: Entry) -> str:
    """By the component's own signature; empty where that says nothing, cannot be imported, or is not trusted."""
    owner, _, argument = entry.key.rpartition(".")
    kind = group if owner == group else KINDS[group].inner or group
    try:
        parameters = inspect.signature(locate(entry.target, kind, owner), eval_str=True).parameters
        annotation = parameters[argument].annotation if argument in parameters else Any  # of **arguments
        return in_words(TypeAdapter(annotation).json_schema())
    except (ConfigError, NameError, PydanticUserError):
        return ""


def _clauses(comment: str) -> tuple[str, str]:
    """A comment without what it says of the paper, and that."""
    parts = comment.split("; ") if comment else []
    of_paper = [part for part in parts if PAPER.match(part)]
    rest = [part for part in parts if part not in of_paper]
    return "; ".join(rest), "; ".join(PAPER.sub("", part, count=1) for part in of_paper)
