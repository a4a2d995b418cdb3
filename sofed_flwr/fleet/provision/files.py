"""Files of a site: written atomically, with their mode from the first byte; secrets are never overwritten.

A run of `sofed provision` may be killed at any moment and is repeated for every new device. So each file exists
completely or not at all (temporary file, fsync, rename, fsync of the directory: if a later file survives a power cut,
so do earlier ones). Existing files are kept, and a private key is never readable by others, not even while it is
written, which `storage.generations.write_atomically` does not ensure.
"""

import os
from collections.abc import Callable
from pathlib import Path

SECRET = 0o600
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
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, wanted), "wb") as file:
        os.fchmod(file.fileno(), wanted)  # the umask may have removed bits
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    handle = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def once(path: Path, make: Callable[[], bytes], wanted: int) -> bytes:
    """Return the file's content, creating it if it does not exist."""
    if not path.exists():
        write(path, make(), wanted)
    return path.read_bytes()
