"""Files that are always the old content or the new one, never a mixture, whatever ends the process or the machine.

Temporary file, fsync, rename, fsync of the directory: if a later file survives a power cut, so do earlier ones.
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

SECRET = 0o600
"""Mode of a file that nobody but its owner may read."""


def write_atomically(path: Path, content: bytes, mode: int | None = None) -> None:
    """Replace a file's content in one step that survives a power cut."""
    write_together({path: content}, mode)


def write_together(contents: Mapping[Path, bytes], mode: int | None = None) -> None:
    """Replace files of one directory in this order, once all contents are on disk: a full disk replaces none.

    They have their `mode` from the first byte, so a secret is never readable by others; None leaves it to the umask.
    """
    temporaries = {path: path.with_name(f"{path.name}.tmp") for path in contents}
    try:
        for path, content in contents.items():
            _write_through(temporaries[path], content, mode)
        for path, temporary in temporaries.items():
            temporary.replace(path)
    except OSError:
        for temporary in temporaries.values():
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
        raise
    for directory in {path.parent for path in contents}:
        sync_directory(directory)


def sync_directory(directory: Path) -> None:
    """Make created and removed names survive a power cut."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _write_through(path: Path, content: bytes, mode: int | None) -> None:
    path.unlink(missing_ok=True)  # whatever is there, a link to another file, too
    how, bits = os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if mode is None else mode
    with os.fdopen(os.open(path, how, bits), "wb") as file:
        if mode is not None:
            os.fchmod(file.fileno(), mode)  # the umask may have removed bits
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
