"""What rot, power cuts and full disks cost a device and the server (docs/reliability.md)."""

import json
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from sofed_flwr.build import build_device, build_server
from sofed_flwr.config.compose import compose
from sofed_flwr.config.schema import RunConfig
from sofed_flwr.core.records import State
from sofed_flwr.core.state_dicts import under
from sofed_flwr.device.participant import Device
from sofed_flwr.server.rounds import RunStoppedError, Server
from sofed_flwr.storage.generations import Store
from sofed_flwr.storage.metrics_log import read_rows
from sofed_flwr.storage.tensor_file import head_of
from tests.storage.test_generations import flip
from tests.support.federation import same
from tests.support.replies import aggregate

Smoke = Callable[..., RunConfig]


def trained(config: RunConfig, shared: State, upto: int) -> Device:
    """Device 0 after some rounds, each in a new process as far as its state is concerned."""
    for number in range(1, upto + 1):
        device = build_device(config, "run", 0)
        device.train_round(number, shared)
    return device


def files(store: Store) -> list[Path]:
    """The newest generation: the file, then the copy of its head."""
    newest = max(store.directory.glob("*.safetensors"))
    return [newest, newest.with_suffix(".head")]


def entries(state: State) -> set[bytes]:
    columns = [state[f"buffer.{name}"] for name in ("images", "scores", "ages")]
    return {b"".join(value.numpy().tobytes() for value in row) for row in zip(*columns, strict=True)}


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was warned of since the last call."""
    found = [record.getMessage() for record in caplog.records if record.name.startswith("sofed_flwr")]
    caplog.clear()
    return found


def test_of_1000_flipped_bytes_1000_are_noticed_and_each_costs_one_image_at_most(
    smoke: Smoke, caplog: pytest.LogCaptureFixture
) -> None:
    """Bit rot anywhere in a device's newest generation."""
    config = smoke()
    store = trained(config, build_server(config).shared, upto=2).store
    whole = store.newest()
    assert whole is not None
    file, copy = files(store)
    size = file.stat().st_size
    draw = random.Random(0)
    noticed, costs = 0, []
    for _ in range(1000):
        place, mask = draw.randrange(size + copy.stat().st_size), draw.randrange(1, 256)
        flip(*((file, place) if place < size else (copy, place - size)), mask)
        found = store.newest()
        assert found is not None
        assert (found.number, found.meta) == (whole.number, whole.meta)
        assert entries(found.tensors) <= entries(whole.tensors)
        kept = under("method.", found.tensors)
        assert not kept or same(kept, under("method.", whole.tensors))
        noticed += len(warnings(caplog)) == 1
        costs.append(len(whole.tensors["buffer.ages"]) - len(found.tensors["buffer.ages"]))
        flip(*((file, place) if place < size else (copy, place - size)), mask)
    assert (noticed, max(costs)) == (1000, 1)
    assert 0 < sum(costs) < 1000, "flips met images and other things"


def test_a_device_trains_on_whatever_rotted(smoke: Smoke, caplog: pytest.LogCaptureFixture) -> None:
    """The cost of one byte in each kind of thing a device remembers, and the round that follows it."""
    config = smoke()
    shared = build_server(config).shared
    file, copy = files(trained(config, shared, upto=2).store)
    head = head_of(file.read_bytes())
    tensors = json.loads(head[8:])
    target = next(name for name in tensors if name.startswith("method.target."))
    places = {name: len(head) + tensors[name]["data_offsets"][0] for name in ("buffer.images", "buffer.scores", target)}
    costs = {}
    for name, (path, place) in {
        **{name: (file, place) for name, place in places.items()},
        "head": (file, 20),
        "copy of the head": (copy, 20),
    }.items():
        flip(path, place)
        device = build_device(config, "run", 0)
        counts = device.train_round(3, shared).metrics
        costs[name] = config.buffer * counts["steps"] - counts["held"]
        assert torch.tensor(counts["loss"]).isfinite()
        assert len(warnings(caplog)) == 1
        assert len(device.buffer) == config.buffer
        flip(path, place)
    assert costs == {"buffer.images": 1, "buffer.scores": 1, target: 0, "head": 0, "copy of the head": 0}


def test_a_device_whose_target_rotted_starts_it_from_the_global_model(smoke: Smoke) -> None:
    config = smoke()
    shared = build_server(config).shared
    store = trained(config, shared, upto=1).store
    file, _ = files(store)
    head = head_of(file.read_bytes())
    target = next(name for name in json.loads(head[8:]) if name.startswith("method.target."))
    flip(file, len(head) + json.loads(head[8:])[target]["data_offsets"][0])
    device = build_device(config, "run", 0)
    device._restore(store.newest(), shared)
    assert len(device.buffer) == config.buffer
    assert same(under("target.", device.trainer.method.local_state()), under("online.", shared))


def test_a_torn_newest_file_costs_one_round_of_the_stream(smoke: Smoke, caplog: pytest.LogCaptureFixture) -> None:
    """What a power cut leaves where a disk lies about its cache; 32 images are one round."""
    config = smoke()
    shared = build_server(config).shared
    file, copy = files(trained(config, shared, upto=3).store)
    content, head = file.read_bytes(), copy.read_bytes()
    size = len(content)
    for torn in (b"", content[:5], content[: len(head)], content[: size // 2], content[:-1], bytes(size)):
        file.write_bytes(torn)
        copy.write_bytes(head)
        device = build_device(config, "run", 0)
        update = device.train_round(4, shared)
        assert [text.endswith("falling back to the generation before it") for text in warnings(caplog)] == [True]
        assert 4 * 32 - device.stream.cursor == 32
        assert update.metrics["steps"] == 2


@dataclass(frozen=True)
class Disk:
    """A file system of 16 MB that can be made to refuse every write, and healed."""

    path: Path
    fault: str

    def fail(self) -> None:
        if self.fault == "read-only":
            self._remount("ro")
            return
        with (self.path / "filler").open("wb", buffering=0) as filler, suppress(OSError):
            while True:
                filler.write(bytes(1 << 20))

    def heal(self) -> None:
        if self.fault == "read-only":
            self._remount("rw")
        else:
            (self.path / "filler").unlink()

    def _remount(self, mode: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{mode}", str(self.path)], check=True)


@pytest.fixture(params=["full", "read-only"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    path = tmp_path / "disk"
    path.mkdir()
    if shutil.which("mount") is None:
        pytest.skip("there is no mount command to make a small file system with")
    command = ["mount", "-t", "tmpfs", "-o", "size=16m", "none", str(path)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.strip()}")
    yield Disk(path, request.param)
    subprocess.run(["umount", "--lazy", str(path)], check=True)  # a server that is not yet collected holds its lock


def test_a_device_trains_on_while_its_disk_refuses_and_saves_when_it_heals(
    disk: Disk, smoke: Smoke, caplog: pytest.LogCaptureFixture
) -> None:
    """One warning per round, the old state still loads, no stray file, no update is lost."""
    config = smoke(out="disk/run")
    server = build_server(smoke(out="elsewhere"))
    device = trained(config, server.shared, upto=1)
    saved = device.buffer.state_dict()
    disk.fail()
    for number in (2, 3):
        update = build_device(config, "run", 0).train_round(number, server.shared)
        assert update.metrics["unsaved"] == 1
        assert not same(update.shared, server.shared)
        assert [text.startswith(f"round {number} is not saved") for text in warnings(caplog)] == [True]
        assert not list(device.store.directory.glob("*.tmp"))
        held = device.store.newest()
        assert held is not None
        assert held.meta["round"] == 1
        assert same(under("buffer.", held.tensors), saved)
    disk.heal()
    update = build_device(config, "run", 0).train_round(4, server.shared)
    held = device.store.newest()
    assert held is not None
    assert held.meta["round"] == 4
    assert "unsaved" not in update.metrics
    assert not warnings(caplog)


def one_round(server: Server, config: RunConfig, number: int) -> None:
    """The devices live on another disk than the server."""
    updates = [build_device(config, server.run, k).train_round(number, server.shared) for k in range(config.clients)]
    aggregate(server, number, updates, {})
    server.close_round(number)


def test_the_server_goes_on_while_its_disk_refuses_and_commits_when_it_heals(
    disk: Disk, smoke: Smoke, caplog: pytest.LogCaptureFixture
) -> None:
    """One warning per round, the old checkpoint still loads, the metrics log has no gap."""
    config, elsewhere = smoke("rounds=4", out="disk/run"), smoke("rounds=4", out="elsewhere")
    server = build_server(config)
    server.close_round(0)
    one_round(server, elsewhere, 1)
    committed = server.shared
    disk.fail()
    for number in (2, 3):
        one_round(server, elsewhere, number)
        assert [text.startswith(f"round {number} cannot be saved") for text in warnings(caplog)] == [True]
        assert server.committed == 1
        held = Store(Path(config.out) / "checkpoint").newest()
        assert held is not None
        assert held.number == 1
        assert same({name: held.tensors[name] for name in committed}, committed)
    disk.heal()
    one_round(server, elsewhere, 4)
    assert not warnings(caplog)
    rows = read_rows(server.directory.log.path)
    assert [row["round"] for row in rows if row["name"] == "seconds"] == [0, 1, 2, 3, 4]
    assert [row["round"] for row in rows if row["name"] == "replies"] == [1, 2, 3, 4]
    resumed = build_server(compose([f"resume={config.out}"]))
    assert resumed.committed == server.committed == 4
    assert same(resumed.shared, server.shared)
    assert not list(disk.path.rglob("*.tmp"))


def test_a_result_that_does_not_fit_on_the_disk_is_one_sentence_and_written_later(disk: Disk, smoke: Smoke) -> None:
    config, elsewhere = smoke(out="disk/run"), smoke(out="elsewhere")
    server = build_server(config)
    server.close_round(0)
    one_round(server, elsewhere, 1)
    disk.fail()
    one_round(server, elsewhere, 2)
    with pytest.raises(
        RunStoppedError, match=r"the result cannot be written whole .*resume=.* continues after round 1"
    ) as refusal:
        server.finish(config.encoder, config.facts)
    assert "\n" not in str(refusal.value)
    disk.heal()
    resumed = build_server(compose([f"resume={config.out}"]))
    one_round(resumed, elsewhere, 2)
    resumed.finish(config.encoder, config.facts)
    assert resumed.directory.result(2) is not None


def test_no_private_model_leaves_while_the_disk_refuses_its_release(disk: Disk, smoke: Smoke) -> None:
    """A full disk may have room for one more line in a page that the ledger already has; then the model leaves."""
    private = ("strategy=dp_fixed", "rounds=4", "evaluation=none")
    config, elsewhere = smoke(*private, out="disk/run"), smoke(*private, out="elsewhere")
    server = build_server(config)
    server.close_round(0)
    one_round(server, elsewhere, 1)
    released = server.shared
    disk.fail()
    one_round(server, elsewhere, 2)
    left = not same(server.shared, released)
    assert left == (len(server.directory.ledger.path.read_text().splitlines()) == 2)
    assert not (left and disk.fault == "read-only")
    disk.heal()
    one_round(server, elsewhere, 3)
    rows = read_rows(server.directory.log.path)
    assert [row["round"] for row in rows if row["name"] == "failed"] == ([] if left else [2])
    assert [release.round for release in server.directory.ledger.releases] == ([1, 2, 3] if left else [1, 3])


@pytest.mark.parametrize("what", ["run", "run/config.yaml", "run/metrics.jsonl"])
def test_a_run_whose_directory_is_deleted_ends_with_what_is_missing(smoke: Smoke, tmp_path: Path, what: str) -> None:
    """Issue 10, 25: the run goes on, in case the directory comes back; its encoder is saved in any case."""
    config, elsewhere = smoke(), smoke(out="elsewhere")
    server = build_server(config)
    server.close_round(0)
    one_round(server, elsewhere, 1)
    gone, away = tmp_path / what, tmp_path / "away"
    gone.rename(away)
    one_round(server, elsewhere, 2)
    assert not gone.exists(), "it is not begun anew, without what it held"
    missing = "metrics.jsonl" if "metrics" in what else "config.yaml"
    with pytest.raises(RunStoppedError, match=f"the result cannot be written whole .*{missing}"):
        server.finish(config.encoder, config.facts)
    assert server.directory.encoder.exists()
    assert not server.directory.summary.exists()
    shutil.rmtree(gone, ignore_errors=True)
    away.rename(gone)
    server.finish(config.encoder, config.facts)
    assert server.directory.result(2) is not None
    assert {row["round"] for row in read_rows(server.directory.log.path)} == {0, 1, 2}


def test_a_device_without_a_place_for_its_state_trains_every_round_as_its_first(
    smoke: Smoke, caplog: pytest.LogCaptureFixture
) -> None:
    """Where nothing can be mounted: a file stands where the directory should be."""
    config = smoke()
    server = build_server(config)
    place = build_device(config, "run", 0).store.directory
    place.parent.mkdir()
    place.touch()
    for number in (1, 2):
        update = build_device(config, "run", 0).train_round(number, server.shared)
        assert (update.metrics["unsaved"], update.metrics["held"]) == (1, config.buffer)
        assert len(warnings(caplog)) == 1
