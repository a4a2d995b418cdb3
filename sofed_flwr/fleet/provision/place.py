"""Which directory may become a site: a new one, an empty one, or one that is a site already.

A site's directory is closed to other users and to git, which would damage a home directory, a clone or /tmp. So nothing
is changed before this check. A site is marked by its first file, `.gitignore` with a content of our own, which also a
killed first run leaves. `server/sofed.env` counts too, if the owner deleted the other.
"""

import os
import pwd
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sofed_flwr.core.errors import ConfigError
from sofed_flwr.fleet.provision.files import PRIVATE_FOLDER, PUBLIC, folder, once
from sofed_flwr.storage.file_lock import take_lock

MARK = ".gitignore"
NO_COMMIT = b"# Private keys are in here.\n*\n"
REFUSED = re.compile(r"[\x00-\x1f\x7f\"'\\$]|[\ud800-\udfff]")
"""Characters of a path that systemd refuses in a unit or interprets; the last are not valid text."""


@contextmanager
def claimed(directory: Path) -> Iterator[Path]:
    """The directory of a site, closed to other users, and locked within the block."""
    place = resolved(directory)
    _refuse_foreign(place)
    place.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
    handle = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if not take_lock(handle):
            raise ConfigError(f"another sofed provision works on {place}; wait for its end")
        _refuse_foreign(place)  # another process may have been faster
        once(folder(place) / MARK, lambda: NO_COMMIT, PUBLIC)
        yield place
    finally:
        os.close(handle)


def resolved(directory: Path) -> Path:
    """The path without symbolic links, if a unit can contain it."""
    try:
        place = directory.resolve()
    except (OSError, RuntimeError) as error:  # a loop of symbolic links is the one or the other
        raise ConfigError(f"{directory} cannot be resolved ({error})") from error
    if character := REFUSED.search(str(place)):
        raise ConfigError(f"{str(place)!r} contains {character[0]!r}, not allowed in a systemd unit; choose another")
    return place


def is_site(place: Path) -> bool:
    """Whether `sofed provision` made this directory, completely or not."""
    mark = place / MARK
    return (mark.is_file() and mark.read_bytes() == NO_COMMIT) or (place / "server" / "sofed.env").is_file()


def _refuse_foreign(place: Path) -> None:
    if not place.exists():
        return
    if not place.is_dir():
        raise ConfigError(f"{place} is a file; a site needs a directory")
    if (owner := place.stat().st_uid) != os.geteuid():
        whose = f"user {user_name(owner)}"
        raise ConfigError(f"{place} belongs to {whose}; run this as that user, or choose another directory")
    others = sorted({path.name for path in place.iterdir()} - {f"{MARK}.tmp"})
    if others and not is_site(place):
        raise ConfigError(
            f"{place} is not a site and not empty (it holds {others[0]!r}); choose a new or an empty directory"
        )


def user_name(number: int) -> str:
    """A user's name by the system, since LOGNAME may be set to anything; the number of one without a name."""
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)
