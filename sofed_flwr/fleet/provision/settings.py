"""`sofed.env`: the settings of a server or a device, which their owner may edit.

The scripts read it as a shell does, and so does this: one NAME=VALUE per line. Anything that a shell would expand, run
or split is refused, because the scripts and `sofed doctor` would then see different values.
"""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from sofed_flwr.core.errors import ConfigError

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
LARGEST = 64 * 1024


def settings(values: Mapping[str, str]) -> bytes:
    """Text of an environment file."""
    return "".join(f"{name}={shlex.quote(value)}\n" for name, value in values.items()).encode()


def read_settings(path: Path, needed: Sequence[str] = ()) -> dict[str, str]:
    """Settings by name, empty without a file; a `ConfigError` if it cannot be read or lacks a needed one."""
    if not path.exists():
        return {}
    if not path.is_file():
        raise ConfigError(f"{path} is not a file; restore it, one NAME=VALUE per line")
    found: dict[str, str] = {}
    for number, name, value in _assignments(path):
        if name in found:
            raise ConfigError(f"{path}, line {number}: {name} is set a second time; keep one of the lines")
        found[name] = value
    for name in needed:
        if not found.get(name):
            raise ConfigError(f"{path} lacks {name}; add a line {name}=VALUE")
    return found


def _assignments(path: Path) -> Iterator[tuple[int, str, str]]:
    for number, line in enumerate(_text(path).split("\n"), 1):
        try:
            words = shlex.split(line, comments=True)
        except ValueError:
            raise ConfigError(f"{path}, line {number}: a quote is not closed") from None
        if not words:
            continue
        name, equals, value = words[0].partition("=")
        if len(words) > 1 or not equals or not NAME.fullmatch(name):
            raise ConfigError(f"{path}, line {number}: expected NAME=VALUE, a value with spaces in quotes")
        if "$" in value or "`" in value:
            raise ConfigError(f"{path}, line {number}: $ and ` are not expanded here; write the value of {name} itself")
        yield number, name, value


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            text = file.read(LARGEST + 1).decode()
    except UnicodeDecodeError:
        text = "\0"
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    if len(text) > LARGEST or re.search(r"[\x00-\x08\x0b-\x1f\x7f]", text):
        raise ConfigError(f"{path} is not a text of settings; restore it, one NAME=VALUE per line")
    return text
