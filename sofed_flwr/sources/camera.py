"""`camera:INDEX`, a camera of the device (or `camera:FILE`, a video), read while the round runs.

For a device without room for a spool, or whose images must not be written to disk before they are selected. Otherwise a
spool is better: it fills while the device waits for its next round, and a repeated round reads the same images again.

Cameras hang, freeze and go dark. The camera is read by a child process (`images/camera_program.py`), one per segment,
which ends with the segment, so no frame is older than that. A camera that sends nothing, or the same image for too
long, makes the segment short; the round continues.
"""

import logging
import select
import time
from collections.abc import Generator, Sequence
from contextlib import closing
from io import BytesIO

import numpy as np
import torch

from sofed_flwr.core.errors import DeviceError
from sofed_flwr.core.records import Pixels
from sofed_flwr.images.child_process import Child, camera_command, has_opencv
from sofed_flwr.images.decoding import MAX_PIXELS, decode
from sofed_flwr.images.frame_filter import digest_if_new
from sofed_flwr.images.jpeg_stream import Jpegs
from sofed_flwr.sources.base import Cursor, Portion, Setting

FORM = "camera:INDEX"
SECONDS_PER_FRAME = 1.0
"""As `sofed collect` has it: consecutive frames of a camera are the same picture."""
SILENCE_SECONDS = 10.0
"""A camera without a frame for this long hangs; starting takes some of it."""

log = logging.getLogger(__name__)


class CameraSource:
    """Frames that `command` writes as JPEGs, `size` x `size` pixels; single-coloured and repeated ones are left out.

    A segment of n frames takes at most 2n times `every`, and `silence`, seconds. The cursor is the digest of the last
    frame taken.
    """

    def __init__(
        self,
        command: Sequence[str],
        size: int,
        max_pixels: int = MAX_PIXELS,
        every: float = SECONDS_PER_FRAME,
        silence: float = SILENCE_SECONDS,
    ) -> None:
        self._command = command
        self._size = size
        self._max_pixels = max_pixels
        self._every = every
        self._silence = silence
        self._last_child: Child | None = None

    def waiting(self, cursor: Cursor) -> int:
        """Unknown before reading, so 0."""
        return 0

    def read(self, cursor: Cursor, count: int) -> Portion:
        """What the camera shows from now on."""
        taken = cursor["taken"] if isinstance(cursor, dict) and isinstance(cursor.get("taken"), str) else ""
        images: list[Pixels] = []
        unreadable = rejected = 0
        with closing(self._frames(until=time.monotonic() + 2 * count * self._every + self._silence)) as frames:
            for frame in frames:
                try:
                    image = decode(BytesIO(frame), self._size, self._max_pixels)
                except Exception:  # PIL's decoders may raise anything on a broken frame
                    unreadable += 1
                    continue
                digest = digest_if_new(image, taken)
                if digest is None:
                    rejected += 1
                    continue
                images.append(image)
                taken = digest
                if len(images) == count:
                    break
        pixels = np.stack(images) if images else np.empty((0, 3, self._size, self._size), np.uint8)
        return Portion(torch.from_numpy(pixels), {"taken": taken}, unreadable, rejected)

    def _frames(self, until: float) -> Generator[bytes]:
        """JPEGs from a new child process, which is always ended."""
        if self._last_child is not None and not self._last_child.gone():
            log.warning("the camera's process cannot be ended: no other one is started")
            return
        try:
            child = self._last_child = Child(self._command)
        except OSError as error:
            log.warning("the camera cannot be started (%s)", error.strerror)
            return
        try:
            yield from self._frames_of(child, until)
        finally:
            child.end()

    def _frames_of(self, child: Child, until: float) -> Generator[bytes]:
        jpegs = Jpegs()
        silent_at = time.monotonic() + self._silence + self._every
        while (left := min(until, silent_at) - time.monotonic()) > 0:
            if not select.select([child.output], [], [], left)[0]:
                continue
            piece = child.read()
            if not piece:
                log.warning("the camera ended")
                return
            for frame in jpegs.feed(piece):
                silent_at = time.monotonic() + self._silence + self._every
                yield frame
        log.warning("the camera gave too few new frames in time")


def check_source(text: str) -> None:
    """The camera is not opened: that takes seconds, and this is called for every message."""
    if not text:
        raise DeviceError("node config source: which camera? write camera:0 for the first one")
    if not has_opencv():
        raise DeviceError("node config source: a camera needs OpenCV on this device; pip install 'sofed-flwr[camera]'")


def open_source(text: str, setting: Setting) -> CameraSource:
    """The camera of this index, or a video file."""
    return CameraSource(camera_command(text, SECONDS_PER_FRAME), setting.image_size, setting.max_pixels)
