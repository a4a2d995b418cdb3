"""What a device's buffer holds, read from its state directory, which is left as it is: no lock, no file.

A device may be training meanwhile. Its generations appear and go as whole files, so what is read is the state after a
round, if not the last then the one before it.
"""

import logging
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path

from torch import Tensor

from sofed_flwr.analysis.buffers.duplicates import near_duplicates
from sofed_flwr.core.errors import ConfigError, DamagedFileError
from sofed_flwr.launch.watched import watched
from sofed_flwr.storage.buffer_state import HeldImages, buffer_of
from sofed_flwr.storage.generations import Generation, Store

MOST_DEVICES = 8
"""Of a run that are read: a page with more is not looked through."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Held:
    """A device's buffer after a round; `stayed` counts the images that were in the one `before`, too.

    That is the one of the last round saved before it in the same run, None if there is none.
    """

    device: int
    now: HeldImages
    before: HeldImages | None = None

    def __len__(self) -> int:
        return len(self.now.ages)

    @property
    def scores(self) -> Tensor:
        """Of the images that have one."""
        return self.now.scores[self.now.scores.isfinite()]

    @cached_property
    def duplicates(self) -> list[list[int]]:
        """Places of images that resemble each other, by group."""
        return near_duplicates(self.now.images)

    @property
    def stayed(self) -> int | None:
        """By their pixels."""
        if self.before is None:
            return None
        each = (Counter(image.numpy().tobytes() for image in held.images) for held in (self.now, self.before))
        return (next(each) & next(each)).total()


def device_homes(path: Path) -> list[Path]:
    """State directories: `path` itself, those of a simulation's run directory, or those in a device's `state-dir`."""
    if not path.is_dir():
        raise ConfigError(f"{path}: there is no such directory; expected a run's or that of a device's state")
    if _has_state(path):
        return [path]
    is_run = (path / "config.yaml").is_file()
    homes = simulated_homes(path) if is_run else _numbered(path)
    if not homes and is_run:
        where = "of a fleet each device has its own: type sofed inspect STATE_DIR there"
        raise ConfigError(f"{path}: a run without the buffers of simulated devices; {where}")
    if not homes:
        raise ConfigError(f"{path}: neither a run's directory nor that of a device's state")
    return homes


def simulated_homes(run: Path) -> list[Path]:
    """State directories of a run's simulated devices; a fleet's run has none."""
    return _numbered(run / "devices")


def read_held(home: Path) -> Held:
    """The newest usable state of one device; a damaged or a foreign one is refused in one sentence."""
    try:
        states = [(generation.meta, _buffer(generation)) for generation in islice(Store(home).generations(), 2)]
    except ValueError as error:
        raise ConfigError(f"{home}: not the state of a device ({error})") from error
    if not states:
        raise DamagedFileError(f"{home}: none of the states in it can be read")
    meta, now = states[0]
    before = [held for earlier, held in states[1:] if earlier["run"] == meta["run"]]
    device = str(meta.get("device", home.name))
    return Held(int(device) if re.fullmatch("[0-9]{1,9}", device) else 0, now, before[0] if before else None)


def read_all(homes: Sequence[Path]) -> list[Held]:
    """The first devices; what cannot be read is left out with a warning."""
    held = []
    for home in watched(homes[:MOST_DEVICES], "reading buffers"):
        try:
            held.append(read_held(home))
        except (ConfigError, DamagedFileError) as error:
            log.warning("%s; left out", error)
    return held


def _buffer(generation: Generation) -> HeldImages:
    """Apart from the target network, which lies in the same memory."""
    held = buffer_of(generation)
    return HeldImages(held.round, held.images.clone(), held.scores.clone(), held.ages.clone())


def _numbered(folder: Path) -> list[Path]:
    found = [home for home in folder.glob("*") if re.fullmatch("[0-9]{1,9}", home.name) and _has_state(home)]
    return sorted(found, key=lambda home: int(home.name))


def _has_state(home: Path) -> bool:
    """What this user may not read is an `OSError`, not an empty directory."""
    return home.is_dir() and any(re.fullmatch(r"[0-9]{8,12}\.safetensors", file.name) for file in home.iterdir())
