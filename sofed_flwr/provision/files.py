"""Files of a site: written whole, with their mode from the first byte, and never twice where they are secrets.

A run of `sofed provision` may be killed anywhere and is repeated for every new device. So each file is either there or
not (temporary file, fsync, rename), what exists is kept, and a private key is never readable by others, not even while
it is being written, which `store.write_atomically` does not promise.
"""

import os
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path

SECRET = 0o600
PUBLIC = 0o644
PROGRAM = 0o755


def folder(path: Path) -> Path:
    """A directory that only its owner may enter."""
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(0o700)
    return path


def write(path: Path, content: bytes, mode: int) -> None:
    """Make the file be this, in one step; a file that already is this is not touched."""
    if path.exists() and path.read_bytes() == content and path.stat().st_mode & 0o777 == mode:
        return
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        os.fchmod(file.fileno(), mode)  # whatever the umask took away
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def once(path: Path, make: Callable[[], bytes], mode: int) -> bytes:
    """Return what the file holds; only a file that does not exist is made."""
    if not path.exists():
        write(path, make(), mode)
    return path.read_bytes()


def settings(values: Mapping[str, str]) -> bytes:
    """Text of an environment file, in the quoting that both a shell and systemd read."""
    return "".join(f"{name}={shlex.quote(value)}\n" for name, value in values.items()).encode()


def read_settings(path: Path) -> dict[str, str]:
    """Read an environment file, which its owner may have edited; nothing if there is none."""
    if not path.exists():
        return {}
    words = (word for line in path.read_text().splitlines() for word in shlex.split(line, comments=True))
    return dict(word.split("=", 1) for word in words if "=" in word)
