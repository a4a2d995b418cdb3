"""`sofed collect`: real child processes that behave like cameras, good and bad ones."""

import errno
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

from sofed_flwr.core.errors import ConfigError
from sofed_flwr.fleet.collect.collector import Collector
from sofed_flwr.fleet.collect.order import order
from sofed_flwr.fleet.collect.spool import Spool, parse_bytes
from sofed_flwr.fleet.collect.stopping import Stopping
from sofed_flwr.images.jpeg_stream import Jpegs
from tests.support.federation import ROOT
from tests.support.frames import encoded, jpeg, picture

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


def test_a_full_spool_on_a_read_only_disk_is_said_once_and_heals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing can be dropped, so nothing may be counted as dropped."""

    def refuse(path: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    collecting, said, _ = collector(tmp_path, limit=len(jpeg(0)) + len(jpeg(1)) + 1)
    collecting._take(jpeg(0))
    collecting._take(jpeg(1))
    with monkeypatch.context() as read_only:
        read_only.setattr(Path, "unlink", refuse)
        for seed in range(2, 12):
            collecting._take(jpeg(seed))
    assert said == ["frames cannot be written (Read-only file system); trying again"]
    assert collecting.spool.bytes == len(jpeg(0)) + len(jpeg(1))
    collecting._take(jpeg(20))
    left = [path.read_bytes() for path in sorted(tmp_path.iterdir())]
    assert left[-1] == jpeg(20)
    assert jpeg(0) not in left
    assert collecting.spool.bytes == sum(map(len, left))


@pytest.mark.parametrize("leftover", ["link", "dangling link", "file", "hard link"])
def test_a_frame_is_written_to_a_new_file_only(tmp_path: Path, leftover: str) -> None:
    """Whoever may write to the spool must not have frames written over other files of ours."""
    (tmp_path / "spool").mkdir()
    precious, hidden = tmp_path / "precious", tmp_path / "spool" / ".sofed-next"
    if leftover != "dangling link":
        precious.write_bytes(b"precious")
    if leftover == "file":
        hidden.write_bytes(b"half a frame, and much longer than the next one")
    elif leftover == "hard link":
        os.link(precious, hidden)
    else:
        hidden.symlink_to(precious)
    spool = Spool(tmp_path / "spool", limit=100)
    assert spool.put(b"frame")
    assert [path.read_bytes() for path in (tmp_path / "spool").iterdir()] == [b"frame"]
    assert precious.exists() == (leftover != "dangling link")
    assert not precious.exists() or precious.read_bytes() == b"precious"


def test_what_only_looks_like_a_frame_is_neither_counted_nor_in_the_way(tmp_path: Path) -> None:
    """A directory and a link with a frame's name, a frame that vanishes, one that becomes a directory."""
    names = [f"sofed-{number:020}.jpg" for number in range(1, 7)]
    (tmp_path / names[0]).mkdir()
    (tmp_path / names[1]).symlink_to("/etc/passwd")
    for name in names[2:]:
        (tmp_path / name).write_bytes(b"0123456789")
    spool = Spool(tmp_path, limit=40)
    assert spool.bytes == 40
    (tmp_path / names[2]).unlink()
    (tmp_path / names[3]).unlink()
    (tmp_path / names[3]).mkdir()
    assert spool.put(b"x" * 25)
    left = {path.name for path in tmp_path.iterdir() if not path.is_dir()}
    assert left >= {names[1], names[5]}
    assert not left & set(names[2:5])
    assert spool.bytes == 35


def test_frames_numbered_beyond_all_time_are_dropped_first_and_numbers_keep_their_length(tmp_path: Path) -> None:
    for number in (5, 10**20 - 1, 2**63):
        (tmp_path / f"sofed-{number:020}.jpg").write_bytes(b"0123456789")
    for expected in ({"sofed-00000000000000000005.jpg"}, set()):
        spool = Spool(tmp_path, limit=40)
        assert spool.put(b"0123456789")
        assert spool.put(b"0123456789")
        assert spool.put(b"0123456789")
        names = {path.name for path in tmp_path.iterdir()}
        assert {len(name) for name in names} == {30}
        assert {name for name in names if abs(int(name[6:26]) - time.time_ns()) > 10**12} == expected
        assert spool.bytes == 40


@pytest.mark.parametrize("text", ["0.5", "0", "-1", "9" * 400, "nan", "inf", "1e9", "1QB", "", "MB"])
def test_sizes_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected bytes above 0"):
        parse_bytes(text)


@pytest.mark.parametrize(("text", "value"), [("200MB", 200_000_000), ("1.5 kb", 1500), ("2GiB", 2**31), ("512", 512)])
def test_sizes_are_written_as_people_write_them(text: str, value: int) -> None:
    assert parse_bytes(text) == value


def collector(spool: Path, limit: int = 10**6) -> tuple[Collector, list[str], Stopping]:
    said: list[str] = []
    stopping = Stopping()
    return Collector(Spool(spool, limit), stopping, said.append, ["true"], 0.0, 5.0), said, stopping


def test_a_full_disk_is_said_once_and_heals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """/dev/full answers every write as a full disk does."""
    collecting, said, _ = collector(tmp_path)
    opened = os.open
    with monkeypatch.context() as full:
        full.setattr(os, "open", lambda *_: opened("/dev/full", os.O_WRONLY))
        for seed in range(3):
            collecting._take(jpeg(seed))
    assert said == ["frames cannot be written (No space left on device); trying again"]
    collecting._take(jpeg(3))
    assert said[1:] == ["frames can be written again"]
    assert len(list(tmp_path.iterdir())) == 1


def test_dark_frozen_and_broken_frames_are_not_kept(tmp_path: Path) -> None:
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
        root = ROOT
        running.append(
            subprocess.Popen(
                [sys.executable, "-m", "sofed_flwr.fleet.collect", content],
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
    """It shows five frames, then hangs, deaf to SIGTERM, with a helper process of its own."""
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
        ({"command": "true 'x"}, "--command=true 'x: no closing quotation"),
        ({"command": "true", "timeout": float("nan")}, "--timeout=nan: expected seconds, at least 0.1"),
        ({"command": "true", "timeout": float("inf")}, "--timeout=inf: expected seconds, at least 0.1"),
        ({"camera": "0", "timeout": -1.0}, "--timeout=-1.0: expected seconds, at least 0.1"),
        ({"command": "true", "timeout": 0.0}, "--timeout=0.0: expected seconds, at least 0.1"),
        ({"command": "true", "every": float("nan")}, "--every=nan: expected seconds, at least 0"),
        ({"command": "true", "every": float("inf")}, "--every=inf: expected seconds, at least 0"),
        ({"command": "true", "every": -0.5}, "--every=-0.5: expected seconds, at least 0"),
    ],
)
def test_an_order_that_cannot_be_followed_is_refused(changes: dict[str, str], message: str, tmp_path: Path) -> None:
    wishes = {"camera": None, "command": None, "every": 1.0, "limit": "1MB", "timeout": 10.0} | changes
    with pytest.raises(ConfigError) as refusal:
        order(tmp_path, **wishes)
    assert str(refusal.value) == message


def test_a_spool_that_cannot_be_is_refused_while_somebody_looks(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place, why in ((tmp_path / "file", "File exists"), (tmp_path / "file" / "spool", "Not a directory")):
        with pytest.raises(ConfigError) as refusal:
            order(place, None, "true", 1.0, "1MB", 10.0)
        assert str(refusal.value) == f"{place}: cannot be a spool ({why})"


def test_a_video_is_collected_by_the_command_as_users_type_it(tmp_path: Path) -> None:
    import cv2
    import numpy as np

    film = cv2.VideoWriter(str(tmp_path / "film.avi"), cv2.VideoWriter.fourcc(*"MJPG"), 10, (64, 48))
    for seed in range(5):
        film.write(np.asarray(picture(seed, (64, 48))))
    film.release()
    sofed = "from sofed_flwr.cli.main import main; main()"
    arguments = ["collect", "spool", "--camera", "film.avi", "--every", "0", "--limit", "1MB"]
    root = str(ROOT)
    with subprocess.Popen(
        [sys.executable, "-c", sofed, *arguments], cwd=tmp_path, env=os.environ | {"PYTHONPATH": root}
    ) as process:
        until(lambda: len(list((tmp_path / "spool").glob("sofed-*.jpg"))) >= 5)
        mapped = Path(f"/proc/{process.pid}/maps").read_text()
        process.terminate()
        assert process.wait(15) == 0
    assert "libtorch" not in mapped, "the collector runs beside training, on little memory"
