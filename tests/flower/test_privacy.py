"""Everything a device sends, through the real ClientApp with real Flower records, against a list of what may leave.

Whoever makes a device send more has to say so here.
"""

import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

import client_app
from sofed_flwr import build as assembly
from sofed_flwr.build import build_dataset, build_method
from sofed_flwr.config.schema import RunConfig
from sofed_flwr.core.errors import DamagedFileError, DeviceError
from sofed_flwr.core.metrics import FROM_DEVICE
from sofed_flwr.core.records import LabeledImages, Split, State
from sofed_flwr.device.participant import Device
from sofed_flwr.flower.device_errors import redact_errors
from sofed_flwr.flower.messages import Task, pack_model, pack_task
from sofed_flwr.storage.tensor_file import head_of
from tests.flower.test_messages import context
from tests.support.federation import conf_names

pytestmark = pytest.mark.usefixtures("_inside_a_run")

Smoke = Callable[..., RunConfig]

COUNTERS = {
    *("round", "loss", "steps", "seen", "discarded", "held", "rescored"),
    *("seconds_scoring", "seconds_training", "starved", "unreadable", "rejected", "unsaved"),
}
assert FROM_DEVICE.keys() == COUNTERS, "what a device sends is what a server reads"
WITHOUT_PREDICTOR = {"fedsimclr", "fedmoco", "fedvicreg"}


def complaints(content: RecordDict, model: State) -> list[str]:
    """What is in a training reply and should not be."""
    if {name: type(record) for name, record in content.items()} != {"shared": ArrayRecord, "counts": MetricRecord}:
        return [f"records {sorted(content)}"]
    arrays, counts = content.array_records["shared"], content.metric_records["counts"]
    sent, expected = arrays.get("model"), pack_model(model)["model"]
    found = [f"array {name}" for name in arrays.keys() ^ {"model"}]
    if sent is not None and head_of(sent.data) != head_of(
        expected.data
    ):  # every name, type and shape, and nothing else
        found.append("head")
    if sent is not None and (sent.shape, len(sent.data)) != (expected.shape, len(expected.data)):
        found.append("bytes")
    found += [f"counter {name}" for name in counts.keys() - COUNTERS]
    return found + [f"list {name}" for name, value in counts.items() if type(value) not in (int, float)]


def train(config: RunConfig, app: ClientApp = client_app.app, **node: Any) -> tuple[RecordDict, State]:
    """One round of a real device, whose images are a share of the dataset."""
    model = build_method(config).shared_state()
    task = Task(config.to_yaml(), "run", 1, 0)
    message = pack_task(task, pack_model(model), node=5, ttl=60)
    return app(message, context(**{"device-id": 0} | node)).content, model


@pytest.mark.parametrize("method", conf_names("method"))
def test_a_training_reply_is_the_shared_model_and_counters(smoke: Smoke, method: str) -> None:
    content, model = train(smoke(f"method={method}", "clients=1", "stream.segments=1"))
    assert complaints(content, model) == []
    modules = {"online"} if method in WITHOUT_PREDICTOR else {"online", "predictor"}
    assert {name.split(".")[0] for name in model} == modules


def test_whatever_is_added_to_a_reply_is_noticed(smoke: Smoke) -> None:
    reply, model = train(smoke("stream.segments=1"))
    name = max(model, key=lambda key: model[key].numel())
    content = reply.array_records["shared"]["model"].data

    def changed(change: Callable[[RecordDict], object]) -> list[str]:
        arrays, counts = reply.array_records["shared"], reply.metric_records["counts"]
        copy = RecordDict({"shared": ArrayRecord(dict(arrays)), "counts": MetricRecord(dict(counts))})
        change(copy)
        return complaints(copy, model)

    assert changed(lambda content: None) == []
    assert changed(lambda content: content.update(more=ConfigRecord({"a": b"pixels"}))) == [
        "records ['counts', 'more', 'shared']"
    ]
    assert changed(lambda content: content["shared"].update(features=Array(np.zeros(1)))) == ["array features"]
    assert changed(lambda content: content["shared"].pop("model")) == ["array model"]

    def replaced(data: bytes) -> list[str]:
        return changed(
            lambda content: content["shared"].update(model=Array("uint8", (len(data),), "safetensors", data))
        )

    def packed(state: State) -> bytes:
        return pack_model(state)["model"].data

    assert replaced(packed(model)) == []
    assert replaced(packed({n: t for n, t in model.items() if n != name})) == ["head", "bytes"]
    assert replaced(packed({**model, "features": torch.zeros(1)})) == ["head", "bytes"]
    assert replaced(packed({**model, name: model[name].double()})) == ["head", "bytes"]
    assert replaced(packed({**model, name: model[name].flatten()})) == ["head", "bytes"]
    assert replaced(safetensors.torch.save(model, {"note": "pixels"})) == ["head", "bytes"]
    assert replaced(content + b"pixels") == ["bytes"]
    assert changed(lambda content: content["counts"].update(highest_score=1.0)) == ["counter highest_score"]
    assert changed(lambda content: content["counts"].update(loss=[1.0, 2.0])) == ["list loss"]


@pytest.mark.parametrize("node", [{"device-id": 3}, {"partition-id": 3, "num-partitions": 4}])
def test_an_answer_to_who_are_you_is_one_number(node: dict[str, int], tmp_path: Path) -> None:
    query = Message(RecordDict(), dst_node_id=5, message_type=MessageType.QUERY, ttl=60)
    content = client_app.app(
        query, context(**node, **{"state-dir": str(tmp_path), "source": f"spool:{tmp_path}"})
    ).content
    assert list(content) == ["identity"]
    assert dict(content.metric_records["identity"]) == {"device" if "device-id" in node else "rank": 3}


# what was planted does not come out


PATTERN = bytes(range(200, 216))


def outgoing(content: RecordDict) -> bytes:
    arrays = b"".join(array.data for record in content.array_records.values() for array in record.values())
    numbers = [v for record in content.metric_records.values() for v in record.values()]
    return arrays + np.array(numbers, np.float64).tobytes() + repr(dict(content.metric_records)).encode()


def planted(split: Split) -> Split:
    """Every image is the pattern over and over; labels are recognisable too."""
    size = split.train.images[0].size
    image = np.frombuffer(PATTERN * (size // len(PATTERN)), np.uint8).reshape(split.train.images.shape[1:])
    images = np.broadcast_to(image, split.train.images.shape).copy()
    images[::2] = split.train.images[::2]  # or a BatchNorm would see no variance at all
    return Split(LabeledImages(images, split.train.labels + 7_654_321), split.test)


def test_planted_pixels_labels_and_names_are_in_no_outgoing_byte_and_no_log(
    smoke: Smoke, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    config = smoke("stream.segments=2", out="ada-lovelace-holiday")
    split = planted(build_dataset(config))
    monkeypatch.setattr(assembly, "build_dataset", lambda _, thorough: split)
    flower = logging.getLogger("flwr")
    flower.addHandler(caplog.handler)
    try:
        with caplog.at_level(logging.INFO):
            content, _ = train(config)
    finally:
        flower.removeHandler(caplog.handler)
    sent, logged = outgoing(content), caplog.text
    as_floats = np.frombuffer(PATTERN, np.uint8).astype(np.float32)
    for secret in (PATTERN, as_floats.tobytes(), (as_floats / 255).tobytes()):
        assert secret not in sent
    labels = {label.tobytes() for label in np.unique(split.train.labels)}
    assert not any(label in sent for label in labels)
    assert b"ada-lovelace" not in sent
    for secret in ("ada-lovelace", "765432", "200, 201", "\\xc8\\xc9"):
        assert secret not in logged


# failures


def failing(error: Exception) -> ClientApp:
    app = ClientApp(mods=[redact_errors])

    @app.train()
    def handler(message: Message, context: object) -> Message:
        raise error

    return app


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError(2, "No such file", "/home/ada/holiday.jpg"),
        ValueError(f"bad pixels {PATTERN!r}"),
        DamagedFileError("/home/ada/state/00000001.safetensors is damaged"),
    ],
)
def test_a_failure_leaves_the_device_without_its_message(
    smoke: Smoke, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO), pytest.raises(DeviceError) as failure:
        train(smoke(), failing(error))
    assert str(failure.value).startswith(f"{type(error).__name__} outside of our code")
    assert failure.value.__cause__ is failure.value.__context__ is None
    for told in (str(failure.value), caplog.text):
        assert "ada" not in told
        assert "\\xc8" not in told


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "home" / "ada"
    place.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(place))
    return place


def with_dataset(config: RunConfig, **dataset: Any) -> RunConfig:
    return config.model_copy(update={"dataset": dataset})


DATASETS = {
    "npz": {"_target_": "sofed_flwr.datasets.npz.Npz", "path": "~/holiday.npz"},
    "folder": {"_target_": "sofed_flwr.datasets.folder.Folder", "path": "~/holiday", "size": 32, "seed": 0}
    | {"test_fraction": 0.2},
    "cifar10": {"_target_": "sofed_flwr.datasets.vision.Cifar10", "root": "~/holiday", "download": False},
}


@pytest.mark.parametrize("absolute", [True, False])
@pytest.mark.parametrize("name", DATASETS)
def test_a_device_without_its_dataset_tells_the_server_no_path(
    smoke: Smoke, home: Path, name: str, absolute: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The text names the path; it is for the device's owner, who finds it in the device's own log."""
    settings = DATASETS[name]
    if absolute:
        settings = {
            key: str(value).replace("~", str(home)) if value is not False else value for key, value in settings.items()
        }
    with pytest.raises(DeviceError) as failure:
        train(with_dataset(smoke(), **settings))
    told = str(failure.value)
    assert re.fullmatch(r"ConfigError in sofed_flwr\.build\.\w+, line \d+; the device's own log says more", told)
    (line,) = [record.getMessage() for record in caplog.records if record.name == "sofed_flwr.flower.device_errors"]
    assert "holiday" in line


def test_a_cache_that_cannot_be_written_tells_the_server_no_path(
    smoke: Smoke, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "cache").write_text("a file where a folder belongs")
    monkeypatch.setenv("SOFED_CACHE", str(home / "cache" / "sofed"))
    with pytest.raises(DeviceError, match=r"^\w+ in sofed_flwr\.\w+(\.\w+)*, line \d+; ") as failure:
        train(smoke())
    assert "ada" not in str(failure.value)


@pytest.mark.parametrize(
    ("node", "told"),
    [
        ({"source": "spool:~/spool", "state-dir": "~/state"}, "node config source is not a directory on this device"),
        ({"source": "~/spool", "state-dir": "~/state"}, "node config source does not say of which kind it is; write"),
        ({"source": "spool:~/spool"}, "node config state-dir is missing; a device with a source keeps its state there"),
        ({"threads": "~/two"}, "node config threads: input should be a valid integer"),
        ({"/home/ada/x": 1}, "node config <path> there is no such key; there are device-id, "),
    ],
)
def test_a_wrong_node_config_reaches_the_server_in_words_made_for_it(
    smoke: Smoke, home: Path, node: dict[str, Any], told: str
) -> None:
    with pytest.raises(DeviceError) as failure:
        train(smoke(), **node)
    assert str(failure.value).startswith(told)
    assert "ada" not in str(failure.value)


def test_a_device_error_that_holds_a_path_after_all_leaves_without_it(smoke: Smoke) -> None:
    with pytest.raises(DeviceError, match=r"^the lock <path> is held by 12$"):
        train(smoke(), failing(DeviceError("the lock /home/ada/state/lock is held by 12")))


def test_a_failure_says_where_in_our_code_it_happened(smoke: Smoke, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise KeyError("/home/ada/holiday.jpg")

    monkeypatch.setattr(Device, "_restore", broken)
    with pytest.raises(
        DeviceError, match=r"^KeyError in sofed_flwr\.device\.participant\._train_alone, line \d+; "
    ) as failure:
        train(smoke())
    assert "ada" not in str(failure.value)


def test_what_was_written_for_the_server_reaches_it(smoke: Smoke) -> None:
    with pytest.raises(DeviceError, match="the source has given 0 images so far"):
        train(smoke(), failing(DeviceError("the source has given 0 images so far")))
