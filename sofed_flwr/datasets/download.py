"""One published file into a folder, whole or not at all, by torchvision's own downloader."""

import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from torchvision.datasets.utils import download_url

TIMEOUT_SECONDS = 10.0
"""Of a download without an answer."""


class Archive(NamedTuple):
    """A file as published."""

    url: str
    name: str
    md5: str


def download(archive: Archive, folder: Path) -> None:
    """Into a temporary folder, then renamed, so that an incomplete file never has the archive's name."""
    folder.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(folder)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".downloading-") as beside, _timeout():
        download_url(archive.url, beside, archive.name, archive.md5)
        (Path(beside) / archive.name).replace(folder / archive.name)


def _remove_abandoned(folder: Path) -> None:
    """What a killed process left: an active download has grown within the timeout."""
    for beside in folder.glob(".downloading-*"):
        newest = max(path.stat().st_mtime for path in (beside, *beside.iterdir()))
        if newest + 2 * TIMEOUT_SECONDS < time.time():
            shutil.rmtree(beside, ignore_errors=True)


@contextmanager
def _timeout() -> Iterator[None]:
    """torchvision sets no time limit: a network that drops packets would block it for minutes."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(TIMEOUT_SECONDS)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)
