"""Generations on disk: the old one or the new one, whole, whatever happens in between; bit rot costs what it hit."""

import itertools
import multiprocessing
import os
import random
import time
from pathlib import Path

import pytest
import torch

from sofed_flwr.core.errors import DamagedFileError
from sofed_flwr.core.records import State
from sofed_flwr.storage.generations import Generation, Store, read_file, write_file
from sofed_flwr.storage.tensor_file import Parts

PARTS = Parts(rows="table.", spare=("extra.", "more."))


def generation(number: int) -> Generation:
    return Generation(number, {"x": torch.full((1000,), float(number)), "n": torch.tensor(number)}, {"round": number})


def in_parts(value: int) -> State:
    """Four entries of one image and one score, and something that can be done without."""
    return {
        "table.images": torch.full((4, 3, 8, 8), value, dtype=torch.uint8),
        "table.scores": torch.arange(4.0) + value,
        "extra.target": torch.full((50,), float(value)),
    }


def flip(path: Path, position: int, mask: int = 0x10) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ mask]))


def test_a_saved_generation_comes_back_with_dtypes_shapes_and_meta(tmp_path: Path) -> None:
    tensors = {
        "images": torch.arange(12, dtype=torch.uint8).reshape(1, 3, 2, 2),
        "scores": torch.tensor([0.5, torch.nan, -torch.inf]),
        "counter": torch.tensor(7),
        "nhwc": torch.rand(2, 3, 4, 4).to(memory_format=torch.channels_last),
    }
    Store(tmp_path).save(Generation(3, tensors, {"run": "a", "cursor": 12}))
    found = Store(tmp_path).newest()
    assert found is not None
    assert (found.number, found.meta) == (3, {"run": "a", "cursor": 12})
    for name, tensor in tensors.items():
        assert found.tensors[name].dtype == tensor.dtype
        torch.testing.assert_close(found.tensors[name], tensor, equal_nan=True, rtol=0, atol=0)


def test_an_empty_directory_is_a_first_start(tmp_path: Path) -> None:
    assert Store(tmp_path / "never").newest() is None


def test_two_generations_are_kept_and_redoing_one_replaces_it(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for number in (1, 2, 3):
        store.save(generation(number))
    assert [g.number for g in store.generations()] == [3, 2]
    store.save(Generation(3, {"x": torch.zeros(1)}, {"redone": True}))
    assert [(g.number, g.meta.get("redone")) for g in store.generations()] == [(3, True), (2, None)]


def test_a_predecessor_stays_though_the_rounds_between_were_never_saved(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.save(generation(2))
    store.save(generation(7))
    assert [g.number for g in store.generations()] == [7, 2]
    store.save(generation(3))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("00000002.head", "00000002.safetensors"),
        *("00000003.head", "00000003.safetensors"),
    ]


@pytest.mark.parametrize("position", [40, -1], ids=["in the head", "in a tensor"])
def test_a_generation_that_is_worth_nothing_in_parts_falls_back_as_a_whole(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, position: int
) -> None:
    """A rotten head is read from its copy; a rotten tensor of a checkpoint costs the checkpoint."""
    store = Store(tmp_path)
    store.save(generation(1))
    store.save(generation(2))
    newest = tmp_path / "00000002.safetensors"
    flip(newest, position % newest.stat().st_size)
    found = store.newest()
    assert found is not None
    assert found.number == (2 if position == 40 else 1)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert newest.name in caplog.text


def test_a_rotten_byte_costs_the_entry_or_the_part_it_is_in(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = Store(tmp_path)
    store.save(Generation(1, in_parts(1), {}), PARTS)
    path = tmp_path / "00000001.safetensors"
    images = path.stat().st_size - 4 * 192  # 768 bytes of images come last: the data is ordered by width of type
    target = images - 50 * 4 - 4 * 4

    flip(path, images + 192)
    found = store.newest()
    assert found is not None
    assert found.tensors["table.images"].shape == (3, 3, 8, 8)
    assert found.tensors["table.scores"].tolist() == [1, 3, 4]
    assert "1 of 4 entries under table. are damaged and left out" in caplog.text

    flip(path, target)
    found = store.newest()
    assert found is not None
    assert sorted(found.tensors) == ["table.images", "table.scores"]
    assert "what it holds under extra. is damaged and left out" in caplog.text


def test_every_flipped_byte_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "file.safetensors"
    write_file(path, {"x": torch.arange(40.0)}, {"round": 1})
    for position, mask in itertools.product(range(path.stat().st_size), (0x01, 0x10, 0x29)):
        flip(path, position, mask)
        with pytest.raises(DamagedFileError):
            read_file(path)
        flip(path, position, mask)
    read_file(path)


def test_a_pickle_is_refused_and_not_executed(tmp_path: Path) -> None:
    path, witness = tmp_path / "bomb.safetensors", tmp_path / "witness"
    path.write_bytes(b"cpathlib\nPath\n(S'" + str(witness).encode() + b"'\ntRp0\n.")
    with pytest.raises(DamagedFileError):
        read_file(path)
    assert not witness.exists()


def test_a_writer_killed_between_the_head_and_the_file_has_changed_nothing(tmp_path: Path) -> None:
    """Both ways it can look: the copy of a generation that does not exist yet, and of one that is being redone."""
    store = Store(tmp_path)
    store.save(Generation(1, in_parts(1), {"try": 1}), PARTS)
    file, copy = tmp_path / "00000001.safetensors", tmp_path / "00000001.head"
    old = file.read_bytes()
    store.save(Generation(1, in_parts(2), {"try": 2}), PARTS)
    file.write_bytes(old)
    (tmp_path / "00000002.head").write_bytes(copy.read_bytes())
    found = store.newest()
    assert found is not None
    assert (found.number, found.meta) == (1, {"try": 1})
    assert all(torch.equal(found.tensors[name], tensor) for name, tensor in in_parts(1).items())
    store.save(Generation(1, in_parts(3), {"try": 3}), PARTS)
    assert sorted(path.name for path in tmp_path.iterdir()) == [copy.name, file.name]


def _write_forever(folder: Path, acknowledged: int) -> None:
    """Every generation is written, then redone."""
    for attempt in itertools.count(1):
        tensors = {"table.x": torch.full((50, 1000), float(attempt)), "extra.y": torch.full((1000,), float(attempt))}
        Store(folder).save(Generation((attempt + 1) // 2, tensors, {"attempt": attempt}), PARTS)
        os.write(acknowledged, attempt.to_bytes(4, "big"))


def _kill_writer(folder: Path, after: float) -> int:
    """SIGKILL a writing process some seconds after its first save; the last attempt that it got acknowledged."""
    reading, writing = os.pipe()
    writer = multiprocessing.get_context("fork").Process(target=_write_forever, args=(folder, writing))
    writer.start()
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        first = pipe.read(4)
        time.sleep(after)
        writer.kill()
        writer.join()
        return int.from_bytes((first + pipe.read())[-4:], "big")


def test_a_writer_killed_at_60_random_points_leaves_the_old_or_the_new_generation(tmp_path: Path) -> None:
    """60 of 60 load, entire, and the next save leaves no stray file."""
    draw = random.Random(0)
    loaded = in_mid_write = 0
    for kill in range(60):
        folder = tmp_path / str(kill)
        acknowledged = _kill_writer(folder, after=draw.uniform(0, 0.01))
        in_mid_write += bool(list(folder.glob("*.tmp")))
        found = Store(folder).newest()
        assert found is not None
        attempt = found.meta["attempt"]
        assert acknowledged <= attempt <= acknowledged + 1
        assert torch.equal(found.tensors["table.x"], torch.full((50, 1000), float(attempt)))
        assert torch.equal(found.tensors["extra.y"], torch.full((1000,), float(attempt)))
        loaded += 1
        Store(folder).save(generation(found.number + 1))
        assert not list(folder.glob("*.tmp"))
        assert {path.stem for path in folder.glob("*.head")} == {path.stem for path in folder.glob("*.safetensors")}
    assert loaded == 60
    assert in_mid_write > 0, "no kill met a half-written file: the test proves nothing"
