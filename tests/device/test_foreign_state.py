"""State that was not written by this device, with checksums that are right: used as far as it can be, or not at all."""

import errno
import json
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from sofed_flwr.build import build_device, build_method
from sofed_flwr.config.schema import RunConfig
from sofed_flwr.core.errors import DamagedFileError, DeviceError
from sofed_flwr.core.records import State
from sofed_flwr.device import state_lock
from sofed_flwr.device.participant import PARTS
from sofed_flwr.device.state_lock import NOTE, locked_state
from sofed_flwr.storage import generations
from sofed_flwr.storage.generations import LAST_NUMBER, Generation, Store
from sofed_flwr.storage.tensor_file import FORMAT, Parts, _digest, _digests, decode, encode, head_of, to_bytes

Smoke = Callable[..., RunConfig]
Change = Callable[[State, dict[str, Any]], object]


def changed(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    return lambda tensors, _: tensors.update({name: change(tensors[name])})


def meta(**values: Any) -> Change:
    return lambda _, held: held.update(values)


def without(name: str) -> Change:
    return lambda tensors, held: (tensors.pop(name, None), held.pop(name, None))


TARGET = "method.target.backbone.conv1.weight"
WRONG: dict[str, Change] = {
    "images as floats": changed("buffer.images", torch.Tensor.float),
    "images of one channel": changed("buffer.images", lambda images: images[:, :1]),
    "images without pixels": changed("buffer.images", lambda images: images[..., :0]),
    "images without a batch": changed("buffer.images", lambda images: images.reshape(16, -1)),
    "scores as halves": changed("buffer.scores", torch.Tensor.half),
    "scores as brain floats": changed("buffer.scores", torch.Tensor.bfloat16),
    "scores by class": changed("buffer.scores", lambda scores: scores[:, None].expand(-1, 2)),
    "ages as floats": changed("buffer.ages", torch.Tensor.float),
    "ages below zero": changed("buffer.ages", lambda ages: ages - 5),
    "ages beyond time": changed("buffer.ages", lambda ages: ages + 2**62),
    "no ages": without("buffer.ages"),
    "more columns": lambda tensors, _: tensors.update({"buffer.labels": torch.zeros(16)}),
    "target of another shape": changed(TARGET, lambda weight: weight[:1]),
    "target of another type": changed(TARGET, torch.Tensor.double),
    "half a target": without(TARGET),
    "a foreign tensor": lambda tensors, _: tensors.update({"method.secret": torch.zeros(3)}),
    "a tensor of nobody's": lambda tensors, _: tensors.update({"else": torch.zeros(3)}),
    "another device": meta(device=7),
    "a device that is no number": meta(device="0"),
    "no run": without("run"),
    "a run that is a list": meta(run=["run"]),
    "no round": without("round"),
    "a round that is text": meta(round="1"),
    "a round that is not a number": meta(round=float("nan")),
    "no cursor": without("cursor"),
    "a cursor that is text": meta(cursor="12"),
    "a cursor below zero": meta(cursor=-3),
    "a cursor beyond the sea": meta(cursor=10**40),
    "a cursor of a spool": meta(cursor={"spool": "/x", "time": 1, "name": "", "taken": ""}),
}


@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG.keys())
def test_a_device_trains_on_and_commits_whatever_a_valid_file_holds(smoke: Smoke, change: Change) -> None:
    """Two rounds: the second one finds a state that is right again."""
    config = smoke()
    shared = build_method(config).shared_state()
    first = build_device(config, "run", 0)
    first.train_round(1, shared)
    held = first.store.newest()
    assert held is not None
    change(held.tensors, held.meta)
    first.store.save(held, PARTS)
    for number in (2, 3):
        device = build_device(config, "run", 0)
        update = device.train_round(number, shared)
        assert "unsaved" not in update.metrics
        assert len(device.buffer) == config.buffer
    found = device.store.newest()
    assert found is not None
    assert (found.meta["run"], found.meta["round"], found.meta["device"]) == ("run", 3, 0)


HEADS: dict[str, Any] = {
    "a list": [],
    "nothing": None,
    "a number": 3,
    "no parts": {"meta": {}, "digests": {}},
    "meta that is a list": {"meta": [1], "rows": None, "spare": None, "digests": {}},
    "rows that are a number": {"meta": {}, "rows": 5, "spare": None, "digests": {}},
    "digests that are text": {"meta": {}, "rows": None, "spare": None, "digests": "x"},
    "too few digests": {"meta": {}, "rows": "t.", "spare": None, "digests": {"rows": "", "spare": "", "needed": ""}},
}


@pytest.mark.parametrize("stated", HEADS.values(), ids=HEADS.keys())
@pytest.mark.parametrize("tensors", [{"x": torch.ones(2)}, {"t.a": torch.ones(2), "t.b": torch.tensor(1.0)}])
def test_a_sealed_head_that_makes_no_sense_is_a_damaged_file(stated: Any, tensors: State) -> None:
    blank = "0" * 32
    content = to_bytes(tensors, {FORMAT: blank + json.dumps(stated)})
    head = head_of(content)
    sealed = head.replace(blank.encode(), _digest([head]).encode(), 1) + content[len(head) :]
    with pytest.raises(DamagedFileError):
        decode(sealed)


def test_every_type_of_tensor_comes_back(tmp_path: Path) -> None:
    """numpy knows fewer than torch: a digest must not need it to."""
    kinds = (torch.bfloat16, torch.float16, torch.float64, torch.bool, torch.int8, torch.float8_e4m3fn)
    tensors = {str(kind): torch.ones(3).to(kind) for kind in kinds} | {"scalar": torch.tensor(2.5)}
    found = decode(encode(tensors, {}, Parts())).tensors
    assert {name: (tensor.dtype, tensor.shape) for name, tensor in found.items()} == {
        name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items()
    }


def test_numbers_count_by_value_and_begin_again_after_the_last(smoke: Smoke) -> None:
    config = smoke()
    shared = build_method(config).shared_state()
    first = build_device(config, "run", 0)
    first.train_round(1, shared)
    store = first.store
    held = store.newest()
    assert held is not None
    for number in (99_999_999, 100_000_000, LAST_NUMBER):
        store.save(Generation(number, held.tensors, held.meta), PARTS)
        found = store.newest()
        assert found is not None
        assert found.number == number
    for name in ("²".zfill(8), "1" * 40, "-0000001", "latest"):
        (store.directory / f"{name}.safetensors").write_bytes(b"")
    for number in (2, 3):
        build_device(config, "run", 0).train_round(number, shared)
        found = store.newest()
        assert found is not None
        assert (found.number, found.meta["round"]) == (number - 2, number)


def test_a_file_that_cannot_be_read_is_as_good_as_a_damaged_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A memory card that answers with an I/O error; a directory with a generation's name is none."""
    store = Store(tmp_path)
    store.save(Generation(1, {"x": torch.ones(2)}, {}))
    (tmp_path / "00000002.safetensors").mkdir()
    store.save(Generation(3, {"x": torch.ones(2)}, {}))
    read = generations.read_plain_file

    def dying(path: Path, largest: int) -> bytes:
        if path.name == "00000003.safetensors":
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return read(path, largest)

    monkeypatch.setattr(generations, "read_plain_file", dying)
    assert [found.number for found in store.generations()] == [1]
    assert [record.levelname for record in caplog.records] == ["WARNING"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may do everything")
def test_a_directory_without_permission_costs_the_memory_of_a_round_only(smoke: Smoke) -> None:
    config = smoke()
    shared = build_method(config).shared_state()
    place = build_device(config, "run", 0).store.directory
    place.mkdir(parents=True, mode=0)
    assert build_device(config, "run", 0).train_round(1, shared).metrics["unsaved"] == 1


def _hold(directory: Path, ready: int, purpose: dict[str, Any]) -> None:
    with locked_state(directory, purpose):
        os.write(ready, b"!")
        signal.pause()


@pytest.fixture
def holder(tmp_path: Path) -> Any:
    """Another process with the lock of a directory."""
    running = []

    def start(directory: Path) -> Any:
        reading, writing = os.pipe()
        purpose = {"run": "other-run", "round": 4}
        process = multiprocessing.get_context("fork").Process(target=_hold, args=(directory, writing, purpose))
        process.start()
        running.append(process)
        assert os.read(reading, 1) == b"!"
        return process

    yield start
    for process in running:
        process.kill()
        process.join()


def test_a_second_run_on_the_same_state_is_told_who_is_at_work(
    smoke: Smoke, holder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = smoke()
    shared = build_method(config).shared_state()
    device = build_device(config, "run", 0)
    device.train_round(1, shared)
    before = sorted((path.name, path.stat().st_mtime_ns) for path in device.store.directory.iterdir())
    process = holder(device.store.directory)
    monkeypatch.setattr(state_lock.locked_state.__wrapped__, "__defaults__", (0.3,))
    with pytest.raises(DeviceError) as refusal:
        build_device(config, "run", 0).train_round(2, shared)
    text = str(refusal.value)
    assert text == f"this device's state is in use: process {process.pid} trains round 4 of run other-run"
    process.kill()
    process.join()
    after = [path for path in device.store.directory.iterdir() if path.name != NOTE]
    assert sorted((path.name, path.stat().st_mtime_ns) for path in after) == before
    assert build_device(config, "run", 0).train_round(2, shared).metrics["steps"] == 2, "a killed process holds nothing"
    assert not (device.store.directory / NOTE).exists()


def test_a_process_that_is_about_to_end_is_waited_for(tmp_path: Path, holder: Any) -> None:
    process = holder(tmp_path)
    killer = subprocess.Popen(
        [sys.executable, "-c", f"import os, time; time.sleep(0.5); os.kill({process.pid}, 9)"],
    )
    with locked_state(tmp_path, {"run": "b", "round": 1}, wait=60):
        assert json.loads((tmp_path / NOTE).read_text())["run"] == "b"
    assert killer.wait() == 0


@pytest.mark.parametrize("note", [b"", b"[1]", b"{}", b'{"pid": "x"}', b"\xff\xfe", b"[" * 10_000])
def test_a_note_that_says_nothing_is_not_repeated(tmp_path: Path, holder: Any, note: bytes) -> None:
    holder(tmp_path)
    (tmp_path / NOTE).write_bytes(note)
    with pytest.raises(DeviceError, match=r"^this device's state is in use: by a process that left no note$"):
        locked_state(tmp_path, {}, wait=0).__enter__()


def test_a_note_with_a_hostile_name_is_not_repeated(tmp_path: Path, holder: Any) -> None:
    holder(tmp_path)
    (tmp_path / NOTE).write_text(json.dumps({"pid": 1, "run": "/home/person\x1b[2J", "round": 2}))
    with pytest.raises(DeviceError, match=r"process 1 trains round 2 of run of another name$"):
        locked_state(tmp_path, {}, wait=0).__enter__()


def test_runs_that_take_turns_on_one_state_are_told_so(smoke: Smoke, caplog: pytest.LogCaptureFixture) -> None:
    config = smoke()
    shared = build_method(config).shared_state()
    for run, number in (("a", 1), ("b", 1), ("a", 2)):
        assert not caplog.records
        build_device(config, run, 0).train_round(number, shared)
    assert [record.getMessage() for record in caplog.records] == [
        "another run used this device's state since; the method starts from the global model"
    ]


def test_a_state_of_a_version_that_knew_one_spare_prefix_is_read() -> None:
    blank, tensors = "0" * 32, {"method.w": torch.ones(2)}
    digests = _digests(tensors, Parts(spare=("method.",)))
    content = to_bytes(
        tensors, {FORMAT: blank + json.dumps({"meta": {}, "rows": None, "spare": "method.", "digests": digests})}
    )
    head = head_of(content)
    sealed = head.replace(blank.encode(), _digest([head]).encode(), 1) + content[len(head) :]
    assert decode(sealed).damage == []
    assert torch.equal(decode(sealed).tensors["method.w"], tensors["method.w"])
