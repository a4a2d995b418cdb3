"""One published file into a folder, whole or not at all, by torchvision's own downloader."""

import socket
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
    """Under another name, then renamed: what a killed process left never has the archive's name."""
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f".{archive.name}.part"
    part.unlink(missing_ok=True)  # a link to another file, too
    try:
        with _timeout():
            download_url(archive.url, folder, part.name, archive.md5)
        part.replace(folder / archive.name)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def _timeout() -> Iterator[None]:
    """torchvision sets no time limit: a network that drops packets would block it for minutes."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(TIMEOUT_SECONDS)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)
