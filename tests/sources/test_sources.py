"""A spool on a device: every image once, whatever the files are, and a round that never waits for any."""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from sofed_flwr.images.decoding import decode
from sofed_flwr.sources import spool as folder
from sofed_flwr.sources.base import Cursor
from sofed_flwr.sources.spool import FolderSource
from tests.support.frames import BAD, GOOD, encoded, fill, fill_in_order, jpeg, picture

SIZE = 16


def drain(spool: Path, cursor: Cursor = None, count: int = 1000) -> tuple[list[bytes], Cursor, int, int]:
    """What a new process reads: images, cursor, unreadable, rejected."""
    images: list[bytes] = []
    unreadable = rejected = 0
    source = FolderSource(spool, SIZE)
    while source.waiting(cursor):
        portion = source.read(cursor, count)
        images += [image.numpy().tobytes() for image in portion.images]
        cursor, unreadable, rejected = portion.cursor, unreadable + portion.unreadable, rejected + portion.rejected
    return images, cursor, unreadable, rejected


def as_read(path: Path) -> bytes:
    return decode(path, SIZE).tobytes()


def test_each_image_is_consumed_once_in_order_of_arrival_over_any_restarts(tmp_path: Path) -> None:
    fill_in_order(tmp_path, 3, 1, 2)
    cursor, seen = None, []
    for seeds in ([9, 4], [], [5, 0]):
        portion = FolderSource(tmp_path, SIZE).read(cursor, 2)
        fill_in_order(tmp_path, *seeds)
        seen += [image.numpy().tobytes() for image in portion.images]
        cursor = portion.cursor
    seen += drain(tmp_path, cursor)[0]
    assert seen == [as_read(tmp_path / f"{seed}.jpg") for seed in (3, 1, 2, 9, 4, 5, 0)]
    assert len(list(tmp_path.glob("*.jpg"))) == 7, "nothing is deleted"


def test_the_same_cursor_gives_the_same_images_again(tmp_path: Path) -> None:
    fill(tmp_path, *range(6))
    _, cursor, *_ = drain(tmp_path)
    fill(tmp_path, *range(6, 9))
    assert drain(tmp_path, cursor) == drain(tmp_path, cursor)
    assert FolderSource(tmp_path, SIZE).waiting(cursor) == 3


def test_a_file_found_half_written_is_used_once_it_is_complete(tmp_path: Path) -> None:
    whole = jpeg(1)
    growing = tmp_path / "1.jpg"
    growing.write_bytes(whole[: len(whole) // 2])
    fill(tmp_path, 2)
    first, cursor, unreadable, _ = drain(tmp_path)
    assert (first, unreadable) == ([as_read(tmp_path / "2.jpg")], 1)
    with growing.open("ab") as file:
        file.write(whole[len(whole) // 2 :])
    second, cursor, unreadable, _ = drain(tmp_path, cursor)
    assert (second, unreadable) == ([as_read(growing)], 0)
    assert drain(tmp_path, cursor)[0] == []


def test_photos_of_a_format_that_is_not_read_are_counted_and_their_format_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fill(tmp_path, 1)
    for name in ("a.heic", "b.HEIC", ".hidden.heic", "notes.txt"):
        (tmp_path / name).write_bytes(jpeg(2))
    images, _, unreadable, _ = drain(tmp_path)
    assert (images, unreadable) == ([as_read(tmp_path / "1.jpg")], 2)
    assert caplog.messages == ["in the spool: HEIC is not read; save it as JPEG or PNG"]


def test_a_file_replaced_while_it_is_read_is_used_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, 1)

    def replaced(path: Path, size: int, max_pixels: int) -> np.ndarray:
        monkeypatch.undo()
        image = decode(path, size, max_pixels)
        path.write_bytes(jpeg(2))
        return image

    monkeypatch.setattr(folder, "decode", replaced)
    before, cursor, *_ = drain(tmp_path)
    assert before + drain(tmp_path, cursor)[0] == [as_read(tmp_path / "1.jpg")]


def test_nothing_is_lost_or_doubled_while_the_spool_fills(tmp_path: Path) -> None:
    """Names in no order, several files per clock tick, a new process per reading."""
    names = np.random.default_rng(0).permutation(200).tolist()

    def writer() -> None:
        for name in names:
            (tmp_path / ".next").write_bytes(jpeg(name, (16, 16)))
            (tmp_path / ".next").rename(tmp_path / f"{name:03}.jpg")

    thread = threading.Thread(target=writer)
    thread.start()
    seen, cursor, readings = [], None, 0
    while thread.is_alive() or readings < 2:
        images, cursor, unreadable, rejected = drain(tmp_path, cursor, count=16)
        seen += images
        readings += 1
        assert (unreadable, rejected) == (0, 0)
    thread.join()
    seen += drain(tmp_path, cursor)[0]
    assert sorted(seen) == sorted(as_read(tmp_path / f"{name:03}.jpg") for name in names)


def test_single_coloured_and_repeated_frames_are_left_out(tmp_path: Path) -> None:
    """Ten thousand frames of a frozen camera are one image, and a covered lens is none."""
    frozen, black = jpeg(1, (16, 16)), encoded(picture(1).point(lambda _: 0))
    for number in range(10_000):
        (tmp_path / f"{number}.jpg").write_bytes(frozen)
    images, cursor, unreadable, rejected = drain(tmp_path, count=64)
    assert (len(images), unreadable, rejected) == (1, 0, 9_999)
    (tmp_path / "later.jpg").write_bytes(frozen)
    (tmp_path / "black.jpg").write_bytes(black)
    (tmp_path / "white.png").write_bytes(encoded(picture(1).point(lambda _: 255), "PNG"))
    images, _, _, rejected = drain(tmp_path, cursor)
    assert (images, rejected) == ([], 3), "the last image is remembered over a restart"


def write(spool: Path, number: int, kinds: dict[str, tuple[str, Callable[[int], bytes]]]) -> Path:
    extension, content = list(kinds.values())[number % len(kinds)]
    path = spool / f"{number}{extension}"
    path.write_bytes(content(number))
    return path


def test_a_thousand_files_of_every_kind_crash_nothing_and_all_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bad = np.random.default_rng(1).random(1000) < 0.3
    good = [write(tmp_path, number, BAD if bad[number] else GOOD) for number in range(1000)]
    good = [path for path, is_bad in zip(good, bad, strict=True) if not is_bad]
    others = [tmp_path / name for name in (".hidden.jpg", "notes.txt", "jpg")]
    for path in others:
        path.write_bytes(jpeg(1))
    (tmp_path / "folder.jpg").mkdir()
    os.mkfifo(tmp_path / "pipe.jpg")
    (tmp_path / "nowhere.jpg").symlink_to(tmp_path / "gone.jpg")
    images, _, unreadable, rejected = drain(tmp_path, count=64)
    assert sorted(images) == sorted(as_read(path) for path in good)
    assert (unreadable, rejected) == (bad.sum(), 0)
    assert not caplog.records


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_counted(tmp_path: Path) -> None:
    fill(tmp_path, 1, 2)
    (tmp_path / "1.jpg").chmod(0)
    assert drain(tmp_path)[2] == 1


def test_bad_files_hardly_slow_the_good_ones_down(tmp_path: Path) -> None:
    """At least 95 % of the throughput, as CPU seconds for the same good files, one bad file to twenty."""
    clean, mixed = tmp_path / "clean", tmp_path / "mixed"
    fill(clean, *range(240), size=(320, 240))
    fill(mixed, *range(240), size=(320, 240))
    for number in range(len(BAD)):
        write(mixed, 1000 + number, BAD)

    def seconds(spool: Path) -> float:
        began = time.process_time()
        assert len(drain(spool)[0]) == 240
        return time.process_time() - began

    def kept() -> float:
        """Share of the throughput, by the fastest of all tries so far: what disturbs a try only makes it slower."""
        pairs.extend((seconds(clean), seconds(mixed)) for _ in range(5))
        fastest_clean, fastest_mixed = (min(column) for column in zip(*pairs, strict=True))
        return fastest_clean / fastest_mixed

    pairs: list[tuple[float, float]] = []
    assert any(kept() >= 0.95 for _ in range(5)), pairs


def test_a_clock_that_went_back_is_reported_and_new_images_count_from_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fill(tmp_path, 1, 2)
    _, cursor, *_ = drain(tmp_path)
    portion = FolderSource(tmp_path, SIZE).read(cursor | {"time": time.time_ns() + 3600 * 10**9}, 10)
    assert len(portion.images) == 0
    (record,) = caplog.records
    assert record.getMessage() == "the clock went back by 3600 s: images in the spool count as seen"
    fill(tmp_path, 3)
    assert drain(tmp_path, portion.cursor)[0] == [as_read(tmp_path / "3.jpg")]


def test_another_directory_or_kind_of_source_starts_at_its_beginning(tmp_path: Path) -> None:
    fill(tmp_path / "old", 1)
    fill(tmp_path / "new", 2)
    fill(tmp_path / "old", 3)
    _, cursor, *_ = drain(tmp_path / "old")
    assert len(drain(tmp_path / "new", cursor)[0]) == 1
    assert len(drain(tmp_path / "new", 4711)[0]) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"time": "1"},
        {"time": None},
        {"time": True},
        {"time": 0.5},
        {"time": -1},
        {"time": 10**400},
        {"name": 3},
        {"taken": ["x"]},
        {"more": 1},
    ],
    ids=repr,
)
def test_a_cursor_that_is_none_is_the_beginning_and_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, change: dict[str, object]
) -> None:
    """A state file from elsewhere may hold anything."""
    fill(tmp_path, 1, 2)
    _, cursor, *_ = drain(tmp_path)
    for wrong in (cursor | change, {"spool": cursor["spool"]}):
        portion = FolderSource(tmp_path, SIZE).read(wrong, 10)
        assert len(portion.images) == 2
        assert drain(tmp_path, portion.cursor)[0] == []
    assert {record.getMessage() for record in caplog.records} == {
        "the saved position in the spool is not valid: it is read from its beginning"
    }


def test_a_spool_that_vanishes_gives_no_images_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = FolderSource(tmp_path / "gone", SIZE)
    assert (source.waiting(None), len(source.read(None, 5).images)) == (0, 0)
    assert "the spool cannot be listed (No such file or directory)" in caplog.text
    assert str(tmp_path) not in caplog.text


def test_a_flood_of_bad_files_makes_a_short_segment_not_a_long_round(tmp_path: Path) -> None:
    for number in range(100):
        (tmp_path / f"{number:03}.jpg").write_bytes(b"")
    fill(tmp_path, 1)
    portion = FolderSource(tmp_path, SIZE).read(None, 4)
    assert (len(portion.images), portion.unreadable) == (0, 40)


def test_pixels_are_whole_numbers_so_nothing_that_is_not_finite_reaches_a_network(tmp_path: Path) -> None:
    fill(tmp_path, 1)
    (tmp_path / "nan.tif").write_bytes(BAD["32 bit float"][1](0))
    portion = FolderSource(tmp_path, SIZE).read(None, 5)
    assert (portion.images.dtype, portion.unreadable) == (torch.uint8, 1)
