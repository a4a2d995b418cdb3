"""`sofed collect`: real child processes that behave like cameras, good and bad ones."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from PIL import Image

from sofed_flwr.collect.collector import Collector, Settings
from sofed_flwr.collect.jpegs import Jpegs
from sofed_flwr.collect.order import order
from sofed_flwr.collect.spool import Spool, parse_bytes
from sofed_flwr.collect.stopping import Stopping
from sofed_flwr.component import ConfigError
from tests.frames import encoded, jpeg, picture

BLACK = encoded(Image.new("RGB", (48, 36)))


def with_thumbnail(seed: int) -> bytes:
    exif = Image.Exif()
    exif[0x927C] = jpeg(seed + 1)  # any tag will do: the header holds a whole JPEG
    return encoded(picture(seed), exif=exif)


def test_images_are_cut_out_of_any_stream_of_pieces() -> None:
    images = [with_thumbnail(1), jpeg(2), encoded(picture(3), progressive=True)]
    assert images[0].count(b"\xff\xd9") == 2, "looking for end markers would cut this one in two"
    stream = b"noise \xff\xff" + images[0] + b"\r\n--boundary" + images[1] + jpeg(4)[:-100] + images[2]
    for size in (1, 7, 1000, len(stream)):
        jpegs = Jpegs()
        assert [i for at in range(0, len(stream), size) for i in jpegs.feed(stream[at : at + size])] == images


def test_a_spool_drops_its_oldest_frames_and_nobody_elses(tmp_path: Path) -> None:
    for name in ("holiday.jpg", "0.jpg", "sofed-1.jpg"):
        (tmp_path / name).write_bytes(b"mine")
    spool = Spool(tmp_path, limit=30)
    for frame in (b"a" * 10, b"b" * 10, b"c" * 10, b"d" * 10):
        assert spool.put(frame)
    spool = Spool(tmp_path, limit=30)
    assert spool.bytes == 30
    assert not spool.put(b"e" * 31), "larger than everything allowed"
    assert spool.put(b"f" * 15)
    kept = sorted(path.read_bytes()[:1] for path in tmp_path.glob("sofed-" + "?" * 20 + ".jpg"))
    assert (kept, spool.bytes) == ([b"d", b"f"], 25)
    assert all((tmp_path / name).exists() for name in ("holiday.jpg", "0.jpg", "sofed-1.jpg"))


@pytest.mark.parametrize(("text", "value"), [("200MB", 200_000_000), ("1.5 kb", 1500), ("2GiB", 2**31), ("512", 512)])
def test_sizes_are_written_as_people_write_them(text: str, value: int) -> None:
    assert parse_bytes(text) == value


def collector(spool: Path) -> tuple[Collector, list[str], Stopping]:
    said: list[str] = []
    stopping = Stopping()
    return Collector(Settings(["true"], 0.0, 5.0), Spool(spool, 10**6), stopping, said.append), said, stopping


def test_a_full_disk_is_said_once_and_heals(tmp_path: Path) -> None:
    """/dev/full answers every write as a full disk does."""
    collecting, said, _ = collector(tmp_path)
    for seed in range(3):
        (tmp_path / ".sofed-next").symlink_to("/dev/full")
        collecting._take(jpeg(seed))
    assert said == ["frames cannot be written (No space left on device); trying on"]
    collecting._take(jpeg(3))
    assert said[1:] == ["frames can be written again"]
    assert len(list(tmp_path.iterdir())) == 1


def test_dark_frozen_and_broken_frames_are_not_kept(tmp_path: Path) -> None:
    """Fault 23."""
    collecting, _, _ = collector(tmp_path)
    for frame in (jpeg(1), *[jpeg(1)] * 5, BLACK, jpeg(2)[:-200], jpeg(2), BLACK, jpeg(2), jpeg(1)):
        collecting._take(frame)
    kept = [path.read_bytes() for path in sorted(tmp_path.iterdir())]
    assert kept == [jpeg(1), jpeg(2), jpeg(1)]
    assert collecting._counts == {"frames": 12, "kept": 3, "blank or repeated": 8, "unreadable": 1}


Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start the collector on a shell script that plays a camera; `film` holds five frames."""
    running: list[subprocess.Popen[str]] = []

    def begin(script: str, **changes: object) -> subprocess.Popen[str]:
        (tmp_path / "film").write_bytes(b"".join(jpeg(seed) for seed in range(5)))
        settings = {"command": ["sh", "-c", script], "every": 0, "timeout": 2, "limit": 10**6} | changes
        content = json.dumps({"spool": str(tmp_path / "spool"), **settings})
        root = Path(__file__).parent.parent
        running.append(
            subprocess.Popen(
                [sys.executable, "-m", "sofed_flwr.collect", content],
                cwd=tmp_path,
                env=os.environ | {"PYTHONPATH": str(root)},
                stdout=subprocess.PIPE,
                text=True,
                # a test suite started in the background inherits an ignored SIGINT; a user's shell does not
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )
        )
        return running[-1]

    yield begin
    for process in running:
        process.kill()
        process.wait()


DEAF = "trap '' TERM; echo $$ >> pids; "


def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def pids(folder: Path) -> list[int]:
    return [int(line) for line in (folder / "pids").read_text().splitlines()]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_collector_and_camera_in_time(start: Start, tmp_path: Path, number: signal.Signals) -> None:
    process = start(DEAF + "cat film; exec sleep 600", timeout=600)
    until(lambda: len(list((tmp_path / "spool").glob("sofed-*.jpg"))) == 5)
    began = time.monotonic()
    process.send_signal(number)
    assert process.wait(15) == 0
    assert time.monotonic() - began < 15
    assert not any(map(alive, pids(tmp_path)))


def test_a_camera_that_hangs_is_ended_with_all_it_started_and_started_again(start: Start, tmp_path: Path) -> None:
    """Fault 22. It shows five frames, then hangs, deaf to SIGTERM, with a helper process of its own."""
    process = start(DEAF + "sleep 600 & echo $! >> pids; cat film; exec sleep 600")
    until(lambda: (tmp_path / "pids").exists() and len(pids(tmp_path)) >= 6)
    assert process.stdout is not None
    said = [process.stdout.readline().strip() for _ in range(2)]
    assert said == ["sofed collect: the camera gave no frame for 2 s; starting it again in 1 s"] * 2
    assert sum(map(alive, pids(tmp_path))) <= 2, "cameras do not pile up"
    process.terminate()
    assert process.wait(15) == 0
    assert not any(map(alive, pids(tmp_path)))


def test_a_camera_that_ends_without_a_frame_is_tried_again_ever_more_rarely(start: Start) -> None:
    process = start("exit 1", timeout=60)
    assert process.stdout is not None
    pauses = [process.stdout.readline().split()[-2] for _ in range(3)]
    assert pauses == ["1", "2", "4"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "collect: give either --camera INDEX or --command COMMAND"),
        ({"camera": "0", "command": "true"}, "collect: give either --camera INDEX or --command COMMAND"),
        ({"command": "no-such-program -x"}, "--command=no-such-program -x: there is no such program here"),
        ({"command": "true", "limit": "lots"}, "--limit=lots: expected bytes above 0, like 500KB, 200MB or 2GB"),
    ],
)
def test_an_order_that_cannot_be_followed_is_refused(changes: dict[str, str], message: str, tmp_path: Path) -> None:
    wishes = {"camera": None, "command": None, "every": 1.0, "limit": "1MB", "timeout": 10.0} | changes
    with pytest.raises(ConfigError) as refusal:
        order(tmp_path, **wishes)
    assert str(refusal.value) == message


def test_a_video_is_collected_by_the_command_as_users_type_it(tmp_path: Path) -> None:
    import cv2
    import numpy as np

    film = cv2.VideoWriter(str(tmp_path / "film.avi"), cv2.VideoWriter.fourcc(*"MJPG"), 10, (64, 48))
    for seed in range(5):
        film.write(np.asarray(picture(seed, (64, 48))))
    film.release()
    sofed = "from sofed_flwr.cli import main; main()"
    arguments = ["collect", "spool", "--camera", "film.avi", "--every", "0", "--limit", "1MB"]
    root = str(Path(__file__).parent.parent)
    with subprocess.Popen(
        [sys.executable, "-c", sofed, *arguments], cwd=tmp_path, env=os.environ | {"PYTHONPATH": root}
    ) as process:
        until(lambda: len(list((tmp_path / "spool").glob("sofed-*.jpg"))) >= 5)
        mapped = Path(f"/proc/{process.pid}/maps").read_text()
        process.terminate()
        assert process.wait(15) == 0
    assert "libtorch" not in mapped, "the collector runs beside training, on little memory"
