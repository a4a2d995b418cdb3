"""The folder of decoded and downloaded datasets: writable by its user only, one writer at a time.

Its files are mapped and trained on without further checks, so no other user may be able to write there.
"""

import logging
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sofed_flwr.core.errors import ConfigError
from sofed_flwr.storage.file_lock import take_lock

log = logging.getLogger(__name__)

REMEDY = "set SOFED_CACHE to a folder of your own"
ROOT_USER = 0
"""May prepare a cache for all users."""


def cache_root() -> Path:
    """`$SOFED_CACHE`, else a folder in the user's cache directory; created for the user alone, refused if it is not."""
    root = _chosen()
    try:
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        status = root.stat()
    except OSError as error:
        raise unwritable(root, error) from error
    if status.st_uid not in (os.geteuid(), ROOT_USER):
        raise ConfigError(f"{root}: this cache belongs to another user (uid {status.st_uid}); {REMEDY}")
    if status.st_mode & 0o022:
        raise ConfigError(
            f"{root}: other users may write to this cache; delete what you do not know there, then chmod go-w it, "
            f"or {REMEDY}"
        )
    return root


def unwritable(folder: Path, error: OSError) -> ConfigError:
    """The sentence for a disk that is full, read-only or not ours."""
    return ConfigError(f"{folder}: the cache of decoded images cannot be written ({error}); {REMEDY}")


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Wait until no other process holds the lock of this file; it ends with its process."""
    try:
        held = file.open("ab")
    except OSError as error:
        raise unwritable(file.parent, error) from error
    with held:
        if not take_lock(held):
            log.warning("waiting for another process, which downloads or decodes the same images")
            take_lock(held, wait=math.inf)
        yield


def _chosen() -> Path:
    try:
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        return Path(os.environ.get("SOFED_CACHE") or Path(cache) / "sofed_flwr")
    except RuntimeError as error:
        raise ConfigError(f"there is no home directory for the cache of decoded images ({error}); {REMEDY}") from error
