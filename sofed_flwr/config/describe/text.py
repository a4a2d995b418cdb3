"""What `sofed config` prints: about a key, a section, a group or one of its choices; or which of them there are."""

import shutil
import textwrap
from collections.abc import Iterator

from sofed_flwr.config.describe.annotated_yaml import Entry
from sofed_flwr.config.describe.explain import Explained, arguments, meaning_of, sections
from sofed_flwr.config.describe.keys import Group, chosen, groups, settable, settings
from sofed_flwr.config.describe.types_in_words import either
from sofed_flwr.core.errors import ConfigError
from sofed_flwr.core.suggestion import did_you_mean

INDENT = "  "


def overview() -> str:
    """Every group with its choices, every key that belongs to none."""
    own, *others = sections().items()
    rows = [
        *(f"{group.name}={group.default}: {', '.join(group.choices)}" for group in groups().values()),
        "",
        *(f"{key.key}={key.default}: {key.meaning}" for key in own[1]),
        *(f"{name}.*: {', '.join(key.key.removeprefix(f'{name}.') for key in keys[1:])}" for name, keys in others),
        "",
        "sofed config KEY explains one: rounds, optimizer, optimizer.lr, policy, policy=fifo, policy.weak_view",
    ]
    return _wrapped(rows)


def about(name: str) -> str:
    """A page of text; what there is not gets a suggestion."""
    group, _, choice = name.partition("=")
    known = groups()
    if group in known and choice in known[group].choices:
        return _wrapped(_of_choice(known[group], choice))
    pages = list(_pages(name, known))
    if not pages:
        raise ConfigError(f"{name}: there is no such key, group or choice{did_you_mean(name, _names(known))}")
    return _wrapped(line for page in pages for line in page)


def _pages(name: str, known: dict[str, Group]) -> Iterator[list[str]]:
    """Components are imported only to explain an argument: a group is described by its yamls."""
    if name in known:
        yield list(_of_group(known[name]))
    keys = [key for section in sections().values() for key in section]
    group = known.get(name.partition(".")[0]) if "." in name else None
    for key in [*keys, *(arguments(group) if group else [])]:
        if key.key.rpartition(".")[0] == name or (key.key == name and name not in known):
            yield list(_of_key(key))


def _names(known: dict[str, Group]) -> list[str]:
    plain = [key.key for keys in sections().values() for key in keys]
    choices = [f"{group.name}={choice}" for group in known.values() for choice in group.choices]
    return [*known, *plain, *choices, *settable()]


def _of_group(group: Group) -> Iterator[str]:
    yield f"{group.name}: {meaning_of(group)}"
    for choice in group.choices:
        default = " (the default)" if choice == group.default else ""
        yield f"{INDENT}{group.name}={choice}{default}: {' '.join(paragraphs(group, choice))}"


def _of_choice(group: Group, choice: str) -> Iterator[str]:
    yield f"{group.name}={choice} (conf/{group.name}/{choice}.yaml)"
    yield from (f"{INDENT}{part}" for part in paragraphs(group, choice))
    for entry in chosen(group.name, choice).entries:
        yield f"{INDENT}{entry.key}={entry.value}{f': {entry.comment}' if entry.comment else ''}"


def _of_key(key: Explained) -> Iterator[str]:
    group = key.key.partition(".")[0]
    yield f"{key.key}{f', with {group}={either(key.choices)}' if key.choices else ''}"
    default = "none, it has to be given" if key.default == "???" else f"{key.default} (conf/{key.file})"
    facts = {
        "": key.meaning,
        "type": key.type,
        "default": default if key.file else "",
        "paper": key.paper,
        "remark": key.remark,
        "also set": ", ".join(f"{entry.value} (conf/{entry.file})" for entry in _elsewhere(key, group)),
        "resume": "a resumed run may change it" if key.may_change else "",
    }
    yield from (f"{INDENT}{f'{label}: ' if label else ''}{text}" for label, text in facts.items() if text)


def _elsewhere(key: Explained, group: str) -> Iterator[Entry]:
    """Where else it is set; other yamls of its group are explained by themselves."""
    for entry in settings():
        if entry.key == key.key and entry.file != key.file and entry.file.partition("/")[0] != group:
            yield entry


def paragraphs(group: Group, choice: str) -> list[str]:
    """What a yaml's first lines say, each paragraph in one line; one that begins with a command only if it is alone."""
    joined = " ".join(line or "\n" for line in chosen(group.name, choice).header)
    parts = [part.strip() for part in joined.split("\n") if part.strip()]
    return [part for part in parts if not part.startswith("sofed ")] or parts


def _wrapped(lines: Iterator[str] | list[str]) -> str:
    width = max(40, min(shutil.get_terminal_size().columns, 120))
    return "\n".join(_hanging(line, width) for line in lines)


def _hanging(line: str, width: int) -> str:
    indent = line[: len(line) - len(line.lstrip())] + 2 * INDENT
    return textwrap.fill(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
