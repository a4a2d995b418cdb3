"""Something that keeps putting images into spools, as cameras do, whatever happens to the devices."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.frames import jpeg

AT_ONCE = 40
"""Images that every spool has from the beginning."""


@contextmanager
def filling(spools: Sequence[Path], every: float) -> Iterator[None]:
    """One image per spool and `every` seconds, none of them twice."""
    over = threading.Event()

    def fill() -> None:
        for number in range(1_000_000):
            for place, spool in enumerate(spools):
                _put(spool, number, seed=number * len(spools) + place)
            if over.wait(every if number >= AT_ONCE else 0):
                return

    thread = threading.Thread(target=fill, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _put(spool: Path, number: int, seed: int) -> None:
    hidden = spool / f".{number}.tmp"
    hidden.write_bytes(jpeg(seed))
    hidden.replace(spool / f"secret-name-{number}.jpg")
