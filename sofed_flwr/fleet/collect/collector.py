"""Frames of a camera into a spool, for as long as the device runs.

Cameras hang, freeze and go dark. The camera is read by a child process, which is restarted when it sends nothing.
Training is another process that reads the spool and never waits for a camera.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import BytesIO
from time import monotonic

from sofed_flwr.fleet.collect.spool import Spool
from sofed_flwr.fleet.collect.stopping import Stopping
from sofed_flwr.images.child_process import Child
from sofed_flwr.images.decoding import decode
from sofed_flwr.images.frame_filter import digest_if_new
from sofed_flwr.images.jpeg_stream import Jpegs

LONGEST_PAUSE = 60.0
STATUS_SECONDS = 60.0
COMPARED_SIZE = 32
"""Pixels per side at which frames are compared, so that sensor noise does not make a frame new."""


@dataclass
class Collector:
    """Runs until it is stopped; `say` gets one line per minute, and one when a fault begins or ends.

    `every`: seconds between two kept frames; `timeout`: without a frame, after which the child is restarted.
    """

    spool: Spool
    stopping: Stopping
    say: Callable[[str], None]
    command: Sequence[str]
    every: float
    timeout: float

    def __post_init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._taken = ""
        self._next_frame = 0.0
        self._next_status = monotonic() + STATUS_SECONDS
        self._disk_works = True

    def run(self) -> None:
        """One child after the other, with pauses that grow until a frame arrives."""
        pause = 1.0
        while not self.stopping.now:
            before = self._counts["frames"]
            reason = self._one_child()
            if self.stopping.now:
                return
            pause = 1.0 if self._counts["frames"] > before else pause
            self._counts["restarts"] += 1
            self.say(f"the camera {reason}; starting it again in {pause:g} s")
            self._pause(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _one_child(self) -> str:
        """Read a child to its end; returns why it ended."""
        try:
            child = Child(self.command)
        except OSError as error:
            return f"cannot be started ({error.strerror})"
        try:
            return self._read(child)
        finally:
            child.end()
            while not child.gone() and not self.stopping.now:
                self.stopping.wait(1.0)

    def _read(self, child: Child) -> str:
        jpegs = Jpegs()
        silent_at = monotonic() + self.timeout
        while not self.stopping.now:
            self._status()
            now = monotonic()
            if now >= silent_at:
                return f"gave no frame for {self.timeout:g} s"
            if not self.stopping.wait(min(silent_at, self._next_status) - now, [child.output]):
                continue
            piece = child.read()
            if not piece:
                return "ended"
            for frame in jpegs.feed(piece):
                silent_at = monotonic() + self.timeout
                self._take(frame)
        return "was stopped"

    def _take(self, frame: bytes) -> None:
        self._counts["frames"] += 1
        if monotonic() < self._next_frame:
            return
        try:
            image = decode(BytesIO(frame), COMPARED_SIZE)
        except Exception:  # PIL's decoders may raise anything on a broken frame
            self._counts["unreadable"] += 1
            return
        digest = digest_if_new(image, self._taken)
        if digest is None:
            self._counts["blank or repeated"] += 1
            return
        self._keep(frame, digest)

    def _keep(self, frame: bytes, digest: str) -> None:
        self._next_frame = monotonic() + self.every
        try:
            kept = self.spool.put(frame)
        except OSError as error:
            self._counts["not written"] += 1
            self._disk(works=False, text=f"frames cannot be written ({error.strerror}); trying again")
            return
        self._disk(works=True, text="frames can be written again")
        self._counts["kept" if kept else "too large"] += 1
        self._taken = digest

    def _disk(self, works: bool, text: str) -> None:
        if works != self._disk_works:
            self.say(text)
        self._disk_works = works

    def _pause(self, seconds: float) -> None:
        until = monotonic() + seconds
        while not self.stopping.now and monotonic() < until:
            self.stopping.wait(min(until, self._next_status) - monotonic())
            self._status()

    def _status(self) -> None:
        if monotonic() < self._next_status:
            return
        self._next_status = monotonic() + STATUS_SECONDS
        counts = ", ".join(f"{count} {name}" for name, count in self._counts.items()) or "no frames"
        self.say(f"{counts}; the spool holds {self.spool.bytes / 1e6:.1f} MB")
