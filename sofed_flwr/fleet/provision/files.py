"""Files of a site: written atomically, with their mode from the first byte; secrets are never overwritten.

A run of `sofed provision` may be killed at any moment and is repeated for every new device. So each file exists
completely or not at all (`storage/atomic_files.py`). Existing files are kept, and a private key is never readable by
others, not even while it is written.
"""

from collections.abc import Callable
from pathlib import Path

from sofed_flwr.storage.atomic_files import write_atomically

PUBLIC = 0o644
PROGRAM = 0o755
PRIVATE_FOLDER = 0o700


def folder(path: Path) -> Path:
    """A directory that only its owner may enter."""
    path.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
    if mode(path) != PRIVATE_FOLDER:
        path.chmod(PRIVATE_FOLDER)
    return path


def mode(path: Path) -> int:
    """Permission bits."""
    return path.stat().st_mode & 0o777


def write(path: Path, content: bytes, wanted: int) -> None:
    """Write the file in one step; one with this content and mode already is not touched."""
    if path.exists() and path.read_bytes() == content and mode(path) == wanted:
        return
    write_atomically(path, content, wanted)


def once(path: Path, make: Callable[[], bytes], wanted: int) -> bytes:
    """Return the file's content, creating it if it does not exist."""
    if not path.exists():
        write(path, make(), wanted)
    return path.read_bytes()
