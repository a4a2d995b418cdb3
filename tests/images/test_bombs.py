"""Files that kill the process that reads them: refused by their header, or read once and never again."""

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sofed_flwr.build import build_device, build_method
from sofed_flwr.config.schema import RunConfig
from sofed_flwr.device.node_config import Node
from sofed_flwr.images.decoding import MAX_PIXELS, _is_decoded_in_one_pass, decode
from sofed_flwr.sources import spool as folder
from sofed_flwr.sources.spool import FolderSource
from sofed_flwr.sources.unfinished import MOST_LINES, UnfinishedReads
from tests.support.bombs import BOMBS, SIDE, jpeg_head, large_jpeg, png
from tests.support.federation import ROOT
from tests.support.frames import encoded, fill_in_order, jpeg, picture

SIZE = 16
MEASURE = """
import resource, sys
from pathlib import Path
from PIL import Image
from sofed_flwr.images.decoding import decode

Image.init()
def most():  # of this program: getrusage counts the process that started it, too
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) // 1024

before = most()
resource.setrlimit(resource.RLIMIT_AS, (2 * 2**30, 2 * 2**30))
try:
    print(decode(Path(sys.argv[1]), 16).shape, end=": ")
except Exception as error:
    print(type(error).__name__, error, end=": ")
print(most() - before)
"""


def peak(file: Path) -> tuple[str, int]:
    """What became of a file in a process of its own, and the megabytes that took."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(file)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    result, _, megabytes = done.stdout.rpartition(": ")
    return result, int(megabytes)


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_before_it_is_decoded(tmp_path: Path, name: str) -> None:
    """Within 2 GB of address space and, the text of a PNG aside, which PIL bounds, a few megabytes."""
    content = BOMBS[name]()
    (tmp_path / "file").write_bytes(content)
    result, megabytes = peak(tmp_path / "file")
    print(f"{name}: {len(content)} bytes, {megabytes} MB, {result}")
    assert not result.startswith(("(", "MemoryError"))
    assert megabytes < 20


@pytest.mark.parametrize("progressive", [False, True])
def test_a_large_jpeg_is_decoded_at_a_fraction_of_its_size_where_that_saves_memory(
    tmp_path: Path, progressive: bool
) -> None:
    (tmp_path / "file").write_bytes(large_jpeg(progressive))
    result, megabytes = peak(tmp_path / "file")
    print(f"{megabytes} MB, {result}")
    assert result.startswith("DecompressionBomb" if progressive else "(3, 16, 16)")
    assert megabytes < 60
    if not progressive:
        small = decode(BytesIO(encoded(picture(3).convert("L").resize((1_200, 900)))), SIZE)
        assert np.abs(decode(tmp_path / "file", SIZE).astype(int) - small).max() < 16, "the same picture"


def test_what_is_allowed_needs_four_bytes_per_pixel(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(encoded(Image.new("RGB", (7_000, 7_000), (1, 2, 3)), "PNG"))
    result, megabytes = peak(tmp_path / "file")
    assert result == "(3, 16, 16)"
    assert megabytes < 250


def test_the_limit_is_the_owners_and_pils_own_is_left_as_it_was() -> None:
    before = Image.MAX_IMAGE_PIXELS
    content = png(100)
    assert decode(BytesIO(content), SIZE, max_pixels=10_000).shape == (3, SIZE, SIZE)
    with pytest.raises(Image.DecompressionBombWarning):
        decode(BytesIO(content), SIZE, max_pixels=9_999)
    with pytest.raises(Image.DecompressionBombError):
        decode(BytesIO(content), SIZE, max_pixels=100)
    with pytest.raises(ValueError, match="the file has more than 80 bytes"):
        decode(BytesIO(content), SIZE, max_pixels=10)
    assert before == Image.MAX_IMAGE_PIXELS
    assert MAX_PIXELS < SIDE**2


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (jpeg(1), True),
        (encoded(picture(1).convert("L")), True),
        (encoded(picture(1), progressive=True), False),
        (jpeg_head(0xC0, 3), True),
        (jpeg_head(0xC1, 3), True),
        (jpeg_head(0xC0, 2), False),
        (jpeg_head(0xC9, 3), False),
        (jpeg_head(0xC0, 3, before=b"\xff\xff"), False),
        (jpeg_head(0xC0, 3, before=b"\xff\xe0\x00\x00"), False),
        (jpeg(1)[:30], False),
        (b"\xff\xd8", False),
        (b"", False),
        (png(8), False),
    ],
)
def test_which_jpegs_are_decoded_in_one_pass(content: bytes, expected: bool) -> None:
    assert _is_decoded_in_one_pass(BytesIO(content)) == expected


def read(spool: Path, state: Path, *deadly: str) -> str:
    """How many images and unreadable files a process finds, or the signal that ended it at one of the deadly ones."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:

        def dying(path: Path, size: int, max_pixels: int) -> np.ndarray:
            if path.name in deadly:
                os.kill(os.getpid(), signal.SIGKILL)
            return decode(path, size, max_pixels)

        folder.decode = dying
        try:
            portion = FolderSource(spool, SIZE, unfinished=state / "unfinished").read(None, 10)
            os.write(writing, f"{len(portion.images)} {portion.unreadable}".encode())
        finally:
            os._exit(0)
    os.close(writing)
    status = os.waitpid(child, 0)[1]
    with os.fdopen(reading) as pipe:
        return pipe.read() or signal.Signals(os.WTERMSIG(status)).name


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    (tmp_path / "spool").mkdir()
    fill_in_order(tmp_path / "spool", 0, 1, 2, 3, 4)
    return tmp_path / "spool"


def test_a_file_that_a_process_did_not_survive_is_left_out_by_the_next(spool: Path, tmp_path: Path) -> None:
    """Three of five, one after the other: none of them is forgotten over the next one."""
    deadly = ("1.jpg", "2.jpg", "4.jpg")
    said = [read(spool, tmp_path, *deadly) for _ in range(5)]
    assert said == ["SIGKILL", "SIGKILL", "SIGKILL", "2 3", "2 3"]


def test_a_file_that_was_replaced_is_tried_again(spool: Path, tmp_path: Path) -> None:
    assert [read(spool, tmp_path, "2.jpg") for _ in range(2)] == ["SIGKILL", "4 1"]
    (spool / "2.jpg").write_bytes(jpeg(7))
    assert read(spool, tmp_path) == "5 0"


def test_a_process_that_ends_as_it_should_leaves_nothing_behind(spool: Path, tmp_path: Path) -> None:
    (spool / "bad.jpg").write_bytes(b"not an image")
    assert read(spool, tmp_path) == "5 1"
    assert (tmp_path / "unfinished").read_bytes() == b""


def test_a_state_that_cannot_be_written_costs_the_memory_not_the_images(spool: Path, tmp_path: Path) -> None:
    (tmp_path / "unfinished").symlink_to(tmp_path / "elsewhere")
    assert read(spool, tmp_path) == "5 0"
    assert not (tmp_path / "elsewhere").exists(), "a link is not followed"
    assert read(spool, tmp_path / "nowhere") == "5 0"


@pytest.mark.parametrize(
    "content",
    [
        b"\xff\x00",
        b"[1]\n",
        b'["1.jpg", 3]\n',
        b"[" * 5000,
        b'{"a": 1}\n',
        b"\n" * 5000,
        b'[1.5, "x"]\n',
        b"[true, 2]\n",
    ],
)
def test_a_damaged_memory_is_no_memory(spool: Path, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "unfinished").write_bytes(content)
    portion = FolderSource(spool, SIZE, unfinished=tmp_path / "unfinished").read(None, 10)
    assert (len(portion.images), portion.unreadable) == (5, 0)


def test_the_memory_is_bounded_and_a_short_name_covers_a_long_one(tmp_path: Path) -> None:
    path = tmp_path / "unfinished"
    path.write_text("".join(f'[{number}, "y"]\n' for number in range(MOST_LINES)))
    for number in range(MOST_LINES, MOST_LINES + 5):
        dying = UnfinishedReads(path)
        dying.open()
        dying.begin((number, "x" * 255))
        dying.begin((number, "é\udcff"))
    reads = UnfinishedReads(path)
    reads.open()
    assert len(path.read_bytes().splitlines()) == MOST_LINES
    assert ((4, "y") in reads, (5, "y") in reads) == (False, True)
    assert ((1004, "é\udcff") in reads, (1004, "x" * 255) in reads) == (True, False)


def test_a_device_goes_on_after_a_file_that_killed_it(
    smoke: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A round in a process that is killed, then one here, with the same node config."""
    config = smoke()
    (tmp_path / "spool").mkdir()
    fill_in_order(tmp_path / "spool", *range(6))
    node = Node.read({"device-id": 0, "source": f"spool:{tmp_path}/spool", "state-dir": str(tmp_path / "state")})
    shared = build_method(config).shared_state()
    child = os.fork()
    if not child:
        monkeypatch.setattr("sofed_flwr.sources.spool.decode", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        try:
            build_device(config, "run", 0, node).train_round(1, shared)
        finally:
            os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    update = build_device(config, "run", 0, node).train_round(1, shared)
    assert (update.metrics["seen"], update.metrics["unreadable"]) == (5, 1)
    assert "a process died while it read '0.jpg' from the spool: the file is left out" in caplog.text


def test_remembering_what_is_read_costs_next_to_nothing(tmp_path: Path) -> None:
    """CPU seconds of 20,000 lines; decoding as many small JPEGs takes ten."""
    reads = UnfinishedReads(tmp_path / "unfinished")
    reads.open()
    before = resource.getrusage(resource.RUSAGE_SELF)
    for number in range(20_000):
        reads.begin((number, f"{number}.jpg"))
    after = resource.getrusage(resource.RUSAGE_SELF)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1.0
