"""Pictures for tests: every seed gives another one, and files that are not what their names say."""

import time
import zlib
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image


def picture(seed: int, size: tuple[int, int] = (48, 36)) -> Image.Image:
    """Smooth random colours, recognisable at any size."""
    coarse = np.random.default_rng(seed).integers(256, size=(4, 4, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC)


def encoded(image: Image.Image, kind: str = "JPEG", **options: object) -> bytes:
    stream = BytesIO()
    image.save(stream, format=kind, **options)
    return stream.getvalue()


def jpeg(seed: int, size: tuple[int, int] = (48, 36)) -> bytes:
    return encoded(picture(seed, size))


def fill(spool: Path, *seeds: int, size: tuple[int, int] = (48, 36)) -> None:
    spool.mkdir(exist_ok=True)
    for seed in seeds:
        (spool / f"{seed}.jpg").write_bytes(jpeg(seed, size))


def fill_in_order(spool: Path, *seeds: int) -> None:
    """Each file in a clock tick of its own."""
    for seed in seeds:
        fill(spool, seed)
        probe = spool / ".probe"
        while not probe.exists() or probe.stat().st_ctime_ns <= (spool / f"{seed}.jpg").stat().st_ctime_ns:
            probe.write_bytes(b"")
            time.sleep(0.001)


def _bad_crc(seed: int) -> bytes:
    content = bytearray(encoded(picture(seed), "PNG"))
    content[29] ^= 0xFF  # the checksum of the header
    return bytes(content)


def _bomb(seed: int) -> bytes:
    """A PNG whose header promises 20,000 x 20,000 pixels."""
    content = encoded(picture(seed), "PNG")
    header = content[12:16] + (20_000).to_bytes(4, "big") * 2 + content[24:29]
    return content[:12] + header + zlib.crc32(header).to_bytes(4, "big") + content[33:]


def _deep(seed: int) -> bytes:
    return encoded(Image.fromarray(np.full((8, 8), 40_000 + seed, np.uint16)), "PNG")


def _moving(seed: int) -> bytes:
    return encoded(picture(seed), "GIF", save_all=True, append_images=[picture(seed + 1)])


BAD: dict[str, tuple[str, Callable[[int], bytes]]] = {
    "empty": (".jpg", lambda _: b""),
    "truncated": (".jpg", lambda seed: jpeg(seed)[:-200]),
    "bad checksum": (".png", _bad_crc),
    "bomb": (".png", _bomb),
    "CMYK": (".jpg", lambda seed: encoded(picture(seed).convert("CMYK"))),
    "16 bit": (".png", _deep),
    "32 bit float": (".tif", lambda _: encoded(Image.fromarray(np.full((8, 8), np.nan, np.float32)), "TIFF")),
    "moving GIF": (".gif", _moving),
    "moving PNG": (
        ".png",
        lambda seed: encoded(picture(seed), "PNG", save_all=True, append_images=[picture(seed + 1)]),
    ),
    "text": (".jpg", lambda _: b"not an image"),
    "random bytes": (".webp", lambda seed: np.random.default_rng(seed).bytes(500)),
    "PostScript": (".png", lambda _: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"),
}
"""Kind -> extension and content by seed."""

GOOD: dict[str, tuple[str, Callable[[int], bytes]]] = {
    "JPEG": (".jpg", jpeg),
    "PNG": (".PNG", lambda seed: encoded(picture(seed), "PNG")),
    "still GIF": (".gif", lambda seed: encoded(picture(seed), "GIF")),
    "wrong extension": (".png", jpeg),
    "gray": (".bmp", lambda seed: encoded(picture(seed).convert("L"), "BMP")),
    "phone": (
        ".jpg",
        lambda seed: encoded(picture(seed), "MPO", save_all=True, append_images=[picture(seed + 1)]),
    ),
}
