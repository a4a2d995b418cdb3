"""Which global models were sent, and with how much noise: `privacy.jsonl`, from which epsilon is computed.

Privacy is spent when a model is sent, not when its round is committed. So a release is on disk, fsynced, before the
model is sent to any device, and a model whose release cannot be written is not sent. No line is ever removed: a round
that is repeated after a crash costs again, and so does a run that begins again in the same directory. Runs in other
directories on the same images, and copies of this one, have their own ledgers: what they spend adds up.

Each line carries its number and a checksum. A ledger with a line that is not as written is refused, because privacy
may be missing from it. An unfinished last line is a release that was being written when the power failed; the model
was not sent yet, but a disk may report a write too early: it counts, with the least noise known here. A model without
noise is written once per run: after it there is no guarantee left to spend.
"""

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from sofed_flwr.core.errors import ConfigError, DamagedFileError
from sofed_flwr.core.records import Noise, Release
from sofed_flwr.storage.atomic_files import write_atomically
from sofed_flwr.storage.plain_files import LARGEST_LOG, read_plain_file

UNKNOWN = "unknown"
"""The run of an unfinished line."""


class PrivacyLedger:
    """The releases of one run directory; one server at a time appends to it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.releases: list[Release] = []
        self._size = 0
        self._unfinished = False

    def load(self, noise: Noise | None) -> None:
        """Read all releases, or refuse; `noise` is that of the run about to continue."""
        content = self._content()
        *lines, rest = content.split(b"\n")
        self.releases = [self._parse(number, line) for number, line in enumerate(lines, start=1)]
        self._size, self._unfinished = len(content) - len(rest), bool(rest)
        if self._unfinished:
            known = [release.noise for release in self.releases] + [noise]
            least = None if None in known else min(filter(None, known), key=lambda one: one.noise_multiplier)
            self.releases.append(Release(UNKNOWN, 0, least))

    def write(self, release: Release) -> None:
        """On disk when this returns; after an `OSError` the model must not be sent."""
        if release.noise is None and any(one.noise is None and one.run == release.run for one in self.releases):
            return
        releases = [*self.releases, release]
        if self._unfinished or not self._size:
            content = b"".join(_line(number, one) for number, one in enumerate(releases, start=1))
            write_atomically(self.path, content)
            self._size, self._unfinished = len(content), False
        else:
            self._append(_line(len(releases), release))
        self.releases = releases

    def of_run(self, run: str) -> int:
        """Number of this run's lines; an unfinished one is counted."""
        return sum(release.run in (run, UNKNOWN) for release in self.releases)

    def _content(self) -> bytes:
        try:
            return read_plain_file(self.path, LARGEST_LOG)
        except FileNotFoundError:
            return b""
        except (OSError, DamagedFileError) as error:
            raise ConfigError(f"{self.path}: the privacy ledger cannot be read ({error})") from error

    def _parse(self, number: int, line: bytes) -> Release:
        try:
            found = json.loads(line)
            noise = None if found["noise"] is None else Noise(**found["noise"])
            release = Release(found["run"], found["round"], noise)
            whole = _line(number, release) == line + b"\n"
        except (ValueError, KeyError, TypeError, RecursionError):
            whole = False
        if not whole:
            what = f"line {number} of the privacy ledger is damaged or not in its place"
            raise ConfigError(f"{self.path}: {what}, so the privacy spent is unknown; put back a copy of it")
        return release

    def _append(self, line: bytes) -> None:
        """After the known lines, over the rest of a failed attempt."""
        with self.path.open("r+b") as file:
            if self.path.is_symlink() or file.seek(0, os.SEEK_END) < self._size:
                raise OSError(f"{self.path.name} is not the file it was")
            file.truncate(self._size)
            file.seek(self._size)
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        self._size += len(line)


def broken_guarantee(releases: Sequence[Release]) -> str | None:
    """Why releases of which some had noise have no finite epsilon, or None."""
    bare = [release.round for release in releases if release.noise is None]
    if not bare or len(bare) == len(releases):
        return None
    return f"models were sent without noise, the first in round {bare[0]}: no privacy guarantee"


def _line(number: int, release: Release) -> bytes:
    """The only form of a line, so that a line can be compared with its parsed content."""
    content = json.dumps({"number": number, **asdict(release)})
    checksum = hashlib.blake2b(content.encode(), digest_size=16).hexdigest()
    return f'{content[:-1]}, "checksum": "{checksum}"}}\n'.encode()
