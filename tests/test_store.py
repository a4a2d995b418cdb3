"""Generations on disk: the old one or the new one, whole, whatever happens in between."""

import itertools
import multiprocessing
import os
import random
import time
from pathlib import Path

import pytest
import torch

from sofed_flwr.store import Generation, Store, read_file, write_file
from sofed_flwr.tensor_file import DamagedFileError


def generation(number: int) -> Generation:
    return Generation(number, {"x": torch.full((1000,), float(number)), "n": torch.tensor(number)}, {"round": number})


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


def test_a_damaged_newest_generation_costs_a_warning_and_one_generation(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store(tmp_path)
    store.save(generation(1))
    store.save(generation(2))
    newest = sorted(tmp_path.glob("*.safetensors"))[-1]
    newest.write_bytes(newest.read_bytes()[:-1])
    found = store.newest()
    assert found is not None
    assert found.number == 1
    assert newest.name in caplog.text


def test_every_flipped_byte_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "file.safetensors"
    write_file(path, {"x": torch.arange(40.0)}, {"round": 1})
    good = path.read_bytes()
    for position in range(len(good)):
        path.write_bytes(good[:position] + bytes([good[position] ^ 0x10]) + good[position + 1 :])
        with pytest.raises(DamagedFileError):
            read_file(path)


def test_a_pickle_is_refused_and_not_executed(tmp_path: Path) -> None:
    path, witness = tmp_path / "bomb.safetensors", tmp_path / "witness"
    path.write_bytes(b"cpathlib\nPath\n(S'" + str(witness).encode() + b"'\ntRp0\n.")
    with pytest.raises(DamagedFileError):
        read_file(path)
    assert not witness.exists()


def _write_forever(folder: Path, acknowledged: int) -> None:
    for number in itertools.count(1):
        Store(folder).save(Generation(number, {"x": torch.full((50_000,), float(number))}, {}))
        os.write(acknowledged, number.to_bytes(4, "big"))


def _kill_writer(folder: Path, after: float) -> int:
    """SIGKILL a writing process after some seconds; the number of the last generation it got acknowledged."""
    reading, writing = os.pipe()
    writer = multiprocessing.get_context("fork").Process(target=_write_forever, args=(folder, writing))
    writer.start()
    os.close(writing)
    time.sleep(after)
    writer.kill()
    writer.join()
    with os.fdopen(reading, "rb") as pipe:
        return int.from_bytes(pipe.read()[-4:], "big")


def test_a_writer_killed_at_100_random_points_leaves_the_old_or_the_new_generation(tmp_path: Path) -> None:
    draw = random.Random(0)
    in_mid_write = 0
    for kill in range(100):
        folder = tmp_path / str(kill)
        acknowledged = _kill_writer(folder, after=draw.uniform(0.005, 0.05))
        in_mid_write += bool(list(folder.glob("*.tmp")))
        found = Store(folder).newest()
        number = found.number if found else 0
        assert acknowledged <= number <= acknowledged + 1
        assert found is None or torch.equal(found.tensors["x"], torch.full((50_000,), float(number)))
        Store(folder).save(generation(number + 1))
        assert not list(folder.glob("*.tmp"))
    assert in_mid_write > 0, "no kill met a half-written file: the test proves nothing"
