"""What lies in a directory that somebody else may have made: plain files and directories, or it is refused.

A link would be written through, to a file of the user's; a pipe is never read to its end, and a device such as
/dev/zero has none. A directory given by the user may itself be a link; what lies in it may not.
"""

import os
import stat
from pathlib import Path

from sofed_flwr.core.errors import ConfigError, DamagedFileError

LARGEST_LOG = 2**30
"""Bytes of a metrics log; a run of 300 rounds with 100 devices has 30 MB."""
LARGEST_RECORD = 2**26
"""Bytes of a summary, a trace or another file with results."""
LARGEST_TENSORS = 2**34
"""Bytes of a state, a checkpoint or an encoder."""


def read_plain_file(path: Path, largest: int) -> bytes:
    """Of a pipe, a device or something larger than that not a byte is read; a missing file is a FileNotFoundError."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # without waiting for the writer of a pipe
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or status.st_size > largest:
            raise DamagedFileError(f"{path.name} is not a plain file of at most {largest} bytes")
        with os.fdopen(handle, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(handle)


def refuse_links(directory: Path) -> None:
    """Raise `ConfigError` for the first thing below `directory` that is neither a plain file nor a directory."""
    for folder, folders, files in os.walk(directory):
        for path in (Path(folder, name) for name in sorted((*folders, *files))):
            mode = path.lstat().st_mode
            if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
                raise ConfigError(f"{path}: a link, pipe or device where a plain file belongs")
