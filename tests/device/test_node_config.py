"""A device of its owner's: node config, a spool instead of a dataset, and a server that has no images either."""

import json
import logging
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from sofed_flwr import build as assembly
from sofed_flwr.analysis.report.page import write_report
from sofed_flwr.build import build_device, build_method, build_server
from sofed_flwr.config.schema import RunConfig
from sofed_flwr.core.errors import DeviceError
from sofed_flwr.core.records import Split
from sofed_flwr.device.buffer import Buffer
from sofed_flwr.device.node_config import Node
from sofed_flwr.device.stream import Stream
from sofed_flwr.device.trainer import Plan, Trainer
from sofed_flwr.launch.progress import result_table
from sofed_flwr.policies.importance import Importance
from sofed_flwr.sources.base import Cursor, Portion
from tests.support.federation import conf_names
from tests.support.frames import fill
from tests.support.replies import aggregate

Smoke = Callable[..., RunConfig]
OWN = {"device-id": 0, "state-dir": "/y"}


@pytest.fixture
def no_dataset(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: RunConfig) -> Split:
        raise AssertionError("a dataset was opened")

    monkeypatch.setattr(assembly, "build_dataset", refuse)


def node(folder: Path, **more: Any) -> Node:
    (folder / "spool").mkdir(exist_ok=True)
    content = {"device-id": 0, "source": f"spool:{folder}/spool", "state-dir": str(folder / "state")}
    return Node.read(content | more)


def test_nothing_of_the_owners_is_a_simulated_device() -> None:
    assert Node.read({"partition-id": 3, "num-partitions": 4}) == Node()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({}, "node config device-id is missing; every device of a run has its own, counted from 0"),
        ({"device-id": -1}, "node config device-id: input should be greater than or equal to 0"),
        ({"device-id": "kitchen"}, "node config device-id: input should be a valid integer, unable to parse string"),
        ({"device-id": 0, "threads": 0}, "node config threads: input should be greater than or equal to 1"),
        (
            {"device-id": 0, "sauce": "x"},
            "node config sauce: there is no such key; there are device-id, max-pixels, source, state-",
        ),
        (
            {"device-id": 0, "source": "spool:/x"},
            "node config state-dir is missing; a device with a source keeps its state",
        ),
        ({**OWN, "source": "spool:/secret/x"}, "node config source is not a directory on this device; its log says"),
        ({**OWN, "source": "spool:"}, "node config source is not a directory on this device; its log says which"),
        (
            {**OWN, "source": "/secret/x"},
            "node config source does not say of which kind it is; write spool:DIRECTORY, camera:INDEX or dataset",
        ),
        ({**OWN, "source": ""}, "node config source does not say of which kind it is; write spool:DIRECTORY"),
        ({**OWN, "source": "spol:/x"}, "node config source is of no known kind; there are camera, dataset, spool"),
        ({**OWN, "source": "base:/x"}, "node config source is of no known kind; there are camera, dataset, spool"),
        ({**OWN, "source": "schemes:/x"}, "node config source is of no known kind; there are camera, dataset, spool"),
        ({**OWN, "source": "..os:x"}, "node config source is of no known kind; there are camera, dataset, spool"),
        ({**OWN, "source": "camera:"}, "node config source: which camera? write camera:0 for the first one"),
        (
            {**OWN, "source": "dataset:mine"},
            "node config source: nothing may follow dataset, the run decides",
        ),
        ({**OWN, "source": 0}, "node config source: input should be a valid string"),
    ],
)
def test_a_wrong_node_config_is_named_and_no_path_leaves_the_device(content: dict[str, Any], message: str) -> None:
    with pytest.raises(DeviceError) as refusal:
        Node.read(content)
    assert str(refusal.value).startswith(message)
    assert "/" not in str(refusal.value)


@pytest.mark.usefixtures("no_dataset")
def test_a_round_with_few_or_no_new_images_trains_on_the_buffer_and_says_so(
    smoke: Smoke, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Two segments of 16 a round: 20 images are one and a quarter, then nothing comes, then a bad file."""
    config, here = smoke(), node(tmp_path)
    shared = build_method(config).shared_state()
    fill(tmp_path / "spool", *range(20))
    counted = []
    for number in (1, 2, 3):
        counted.append(build_device(config, "run", 0, here).train_round(number, shared).metrics)
        (tmp_path / "spool" / "secret.jpg").write_bytes(b"" if number == 2 else b"not yet")
    names = ("steps", "seen", "starved", "unreadable")
    assert [[metrics.get(name) for name in names] for metrics in counted] == [
        [2, 20, 1, None],
        [2, None, 2, 1],
        [2, None, 2, 1],
    ]
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(lines) == 3
    assert lines[0].startswith("1 of 2 segments had fewer new images than wanted")
    assert "secret" not in caplog.text


@pytest.mark.usefixtures("no_dataset")
def test_a_restarted_device_reads_on_and_a_repeated_round_reads_the_same(smoke: Smoke, tmp_path: Path) -> None:
    config, here = smoke("stream.segments=null", "policy=fifo"), node(tmp_path)
    shared = build_method(config).shared_state()
    fill(tmp_path / "spool", *range(16))
    build_device(config, "run", 0, here).train_round(1, shared)
    fill(tmp_path / "spool", *range(16, 48))
    first = build_device(config, "run", 0, here)
    second = build_device(config, "run", 0, here)
    updates = [device.train_round(2, shared) for device in (first, second)]
    assert [update.metrics["seen"] for update in updates] == [32, 32], "one pass over what was waiting"
    assert torch.equal(first.buffer.images, second.buffer.images)
    assert (tmp_path / "state" / "0").stat().st_mode & 0o777 == 0o700


@pytest.mark.usefixtures("no_dataset")
def test_one_image_is_too_few_to_train_and_is_kept(smoke: Smoke, tmp_path: Path) -> None:
    config, here = smoke(), node(tmp_path)
    shared = build_method(config).shared_state()
    fill(tmp_path / "spool", 1)
    with pytest.raises(DeviceError, match=r"^the source has given 1 images so far, training needs 2$"):
        build_device(config, "run", 0, here).train_round(1, shared)
    fill(tmp_path / "spool", 2)
    device = build_device(config, "run", 0, here)
    assert device.train_round(2, shared).metrics["seen"] == 1
    assert len(device.buffer) == 2


@pytest.mark.usefixtures("no_dataset")
@pytest.mark.parametrize("method", [name for name in conf_names("method") if name != "byol_centralized"])
def test_every_method_trains_on_three_images(smoke: Smoke, tmp_path: Path, method: str) -> None:
    config = smoke(f"method={method}", "stream.image_size=24")
    fill(tmp_path / "spool", 1, 2, 3)
    device = build_device(config, "run", 0, node(tmp_path))
    update = device.train_round(1, build_method(config).shared_state())
    assert update.metrics["steps"] == 2
    assert device.buffer.images.shape == (3, 3, 24, 24)
    assert all(torch.isfinite(tensor).all() for tensor in update.shared.values())


def test_a_device_without_a_source_takes_its_share_of_the_dataset(smoke: Smoke, tmp_path: Path) -> None:
    config = smoke("trace={device:1,round:1,iterations:1}")
    shared = build_method(config).shared_state()
    here = Node.read({"device-id": 1, "state-dir": str(tmp_path / "state"), "threads": 1})
    real = build_device(config, "run", 1, here).train_round(1, shared)
    simulated = build_device(config, "run", 1).train_round(1, shared)
    assert all(torch.equal(real.shared[name], simulated.shared[name]) for name in shared)
    assert (tmp_path / "state" / "1" / "scores_round_1.json").exists(), "scores stay on the device"
    with pytest.raises(DeviceError, match=r"^node config device-id=2: expected less than clients=2$"):
        build_device(config, "run", 2, here)


@pytest.mark.usefixtures("no_dataset")
def test_a_fleet_without_labeled_images_trains_and_reports(smoke: Smoke, tmp_path: Path) -> None:
    config = smoke("evaluation=none", "clients=1")
    server = build_server(config)
    server.close_round(0)
    fill(tmp_path / "spool", *range(40))
    for number in (1, 2):
        update = build_device(config, server.run, 0, node(tmp_path)).train_round(number, server.shared)
        aggregate(server, number, [update], {})
        server.close_round(number)
    server.finish(config.encoder, config.facts)
    summary = json.loads(server.directory.summary.read_text())
    assert (summary["knn"], summary["linear"], summary["feature_std"]) == (None, {}, None)
    console = Console(file=StringIO(), width=160)
    console.print(result_table(summary))
    assert f"trained without labels │ {summary['loss']:.2f} │" in console.file.getvalue()
    assert "dataset=" not in console.file.getvalue(), "the spool is none"
    write_report([server.directory.path], tmp_path / "report.html")
    assert "No accuracy has been logged" in (tmp_path / "report.html").read_text()


class NoisyStart:
    """Real pictures, after a burst of noise in the first five segments; marks noise by its first pixel."""

    def __init__(self, images: torch.Tensor) -> None:
        self._images = images

    def waiting(self, cursor: Cursor) -> int:
        return len(self._images)

    def read(self, cursor: Cursor, count: int) -> Portion:
        start = cursor or 0
        generator = torch.Generator().manual_seed(start)
        images = self._images[torch.arange(start, start + count) % len(self._images)].clone()
        noisy = start < 5 * count
        if noisy:
            images[::2] = torch.randint(256, images[::2].shape, dtype=torch.uint8, generator=generator)
        images[:, :, 0, 0] = 0
        images[::2, :, 0, 0] = 255 if noisy else 0
        return Portion(images, start + count)


@pytest.mark.parametrize("max_age", [10, None])
def test_an_age_cap_keeps_noise_from_hogging_the_buffer(smoke: Smoke, max_age: int | None) -> None:
    """With the real scorer: half of the first five segments is noise, which no model ever understands."""
    config = smoke()
    method = build_method(config)
    method.take_global(method.shared_state(), local=None)
    policy = Importance(lazy_interval=None, weak_view="flip", on_global="keep", max_age=max_age)
    trainer = Trainer(method, policy, momentum=0.9, weight_decay=0.0)
    stream = Stream(NoisyStart(torch.tensor(assembly.build_dataset(config).train.images)))
    buffer = Buffer(16)
    draw = torch.Generator().manual_seed(0)
    shares = []
    for _ in range(5):
        trainer.train(stream, buffer, Plan(10, 0.06, draw, draw))
        shares.append(float((buffer.images[:, 0, 0, 0] == 255).float().mean()))
    assert shares[0] > 0.1
    assert max(shares[1:]) <= 0.1 if max_age else shares[1] > 0.1, "after 20, 30, 40 and 50 steps"
