"""Small files that promise large pictures, by format; none of them is ever decoded by the test that made it."""

import struct
import zlib
from collections.abc import Callable
from io import BytesIO

from PIL import Image

from tests.support.frames import encoded, picture

SIDE = 9_000
"""81 million pixels: below the limit that PIL has by itself, above ours."""


def _chunk(kind: bytes, content: bytes) -> bytes:
    return len(content).to_bytes(4, "big") + kind + content + zlib.crc32(kind + content).to_bytes(4, "big")


def png(side: int = SIDE, *chunks: bytes) -> bytes:
    """Gray, all of one shade: a byte per pixel becomes a thousandth."""
    packer = zlib.compressobj(1)
    rows = b"".join(packer.compress(bytes(side + 1)) for _ in range(side)) + packer.flush()
    head = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        [_chunk(b"IHDR", head), *chunks, _chunk(b"IDAT", rows), _chunk(b"IEND", b"")]
    )


def _zeros(count: int) -> bytes:
    packer = zlib.compressobj(1)
    return b"".join(packer.compress(bytes(1 << 20)) for _ in range(count >> 20)) + packer.flush()


def _gif(side: int) -> bytes:
    content = bytearray(encoded(picture(1), "GIF"))
    content[6:10] = struct.pack("<HH", side, side)
    return bytes(content)


def _gif_frame(side: int) -> bytes:
    """A small canvas with a large frame on it."""
    content = bytearray(encoded(picture(1), "GIF"))
    place = content.index(b"\x2c", 13 + 3 * 256) if b"\x2c" in content[13 + 3 * 256 :] else content.index(b"\x2c")
    content[place + 5 : place + 9] = struct.pack("<HH", side, side)
    return bytes(content)


def _webp(side: int) -> bytes:
    still = encoded(picture(1), "WEBP", lossless=True)[12:]
    canvas = b"VP8X" + struct.pack("<I", 10) + b"\x00" * 4 + (side - 1).to_bytes(3, "little") * 2
    return b"RIFF" + struct.pack("<I", 4 + len(canvas) + len(still)) + b"WEBP" + canvas + still


def _tiff(side: int) -> bytes:
    return encoded(Image.new("1", (side, side)), "TIFF", compression="tiff_adobe_deflate")


def _tiff_pages(side: int) -> bytes:
    stream = BytesIO()
    picture(1).convert("1").save(
        stream, "TIFF", save_all=True, append_images=[Image.new("1", (side, side))], compression="group4"
    )
    return stream.getvalue()


def _tiff_tag() -> bytes:
    """A tag that claims to hold four thousand million values."""
    content = bytearray(encoded(picture(1), "TIFF"))
    directory = struct.unpack_from("<I", content, 4)[0]
    struct.pack_into("<I", content, directory + 2 + 12 * 5 + 4, 0xFFFFFFF0)
    return bytes(content)


def _bmp(side: int) -> bytes:
    """Run-length encoded: nothing but the header and an end."""
    head = struct.pack("<IiiHHIIiiII", 40, side, side, 1, 8, 1, 0, 0, 0, 256, 0) + bytes(1024)
    return b"BM" + struct.pack("<IHHI", 0, 0, 0, 14 + len(head)) + head + b"\x00\x02\xff\xff" * 100 + b"\x00\x01"


def jpeg_head(marker: int, colours_in_scan: int, side: int = 60_000, before: bytes = b"") -> bytes:
    """SOI, whatever comes `before`, a frame of three colours, a scan of some of them, and a few bytes of data."""
    parts = b"".join(bytes([number, 0x11, 0]) for number in (1, 2, 3))
    frame = struct.pack(">BHHB", 8, side, side, 3) + parts
    scan = (
        bytes([colours_in_scan]) + b"".join(bytes([number + 1, 0]) for number in range(colours_in_scan)) + b"\0\x3f\0"
    )
    segments = [(marker, frame), (0xDA, scan)]
    return b"\xff\xd8" + before + b"".join(
        bytes([0xFF, code]) + struct.pack(">H", len(content) + 2) + content for code, content in segments
    ) + bytes(100)  # fmt: skip


def large_jpeg(progressive: bool) -> bytes:
    """108 million pixels, with something to see."""
    return encoded(picture(3).convert("L").resize((12_000, 9_000)), progressive=progressive)


BOMBS: dict[str, Callable[[], bytes]] = {
    "PNG": lambda: png(),
    "PNG text": lambda: png(8, *[_chunk(b"zTXt", b"a\0\0" + _zeros(1 << 29))]),
    "PNG profile": lambda: png(8, _chunk(b"iCCP", b"a\0\0" + _zeros(1 << 29))),
    "GIF": lambda: _gif(SIDE),
    "GIF as large as can be": lambda: _gif(65_535),
    "GIF frame": lambda: _gif_frame(SIDE),
    "WebP": lambda: _webp(SIDE),
    "WebP as large as can be": lambda: _webp(16_383),
    "TIFF": lambda: _tiff(SIDE),
    "TIFF pages": lambda: _tiff_pages(SIDE),
    "TIFF tag": lambda: _tiff_tag(),
    "BMP": lambda: _bmp(SIDE),
    "BMP as wide as can be": lambda: _bmp(2**30),
    "PPM": lambda: b"P6 9000 9000 255\n" + bytes(100),
    "JPEG as large as can be": lambda: jpeg_head(0xC0, 3, 65_500),
    "progressive JPEG": lambda: jpeg_head(0xC2, 3),
    "JPEG colour by colour": lambda: jpeg_head(0xC0, 1),
    "progressive JPEG in disguise": lambda: jpeg_head(0xC2, 3, before=b"\xff\x01"),
}
