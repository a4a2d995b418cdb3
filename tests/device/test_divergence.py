"""A round that diverges costs that round: nothing of it is committed, and the next one is as good as any."""

import math
from collections.abc import Callable, Iterator

import pytest
import torch

from sofed_flwr.build import build_device, build_method, build_server
from sofed_flwr.config.schema import RunConfig
from sofed_flwr.core.errors import DeviceError
from sofed_flwr.core.records import State
from sofed_flwr.core.state_dicts import over, under
from sofed_flwr.device.health import fault
from sofed_flwr.device.participant import PARTS, Device
from sofed_flwr.storage.generations import Generation
from tests.support.federation import same

Smoke = Callable[..., RunConfig]
METHODS = ["sofed", "fedmoco", "fedsimclr"]
"""What a device keeps of its method: a target, a target and a queue, nothing."""


def configured(smoke: Smoke, method: str, *more: str) -> RunConfig:
    return smoke(f"method={method}", "clients=1", *more)


def device(config: RunConfig, lr: float | None = None) -> Device:
    made = build_device(config, "run", 0)
    if lr is not None:
        made.learning_rate = lambda _: lr
    return made


def held(made: Device) -> Generation:
    generation = made.store.newest()
    assert generation is not None
    return generation


def values(state: State) -> Iterator[torch.Tensor]:
    return (tensor for tensor in state.values() if tensor.is_floating_point())


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("lr", [1e20, 1e3], ids=["not finite", "finite"])
def test_a_diverged_round_leaves_the_state_of_the_round_before(smoke: Smoke, method: str, lr: float) -> None:
    config = configured(smoke, method)
    shared = build_method(config).shared_state()
    shared = device(config).train_round(1, shared).shared
    before = held(device(config))
    with pytest.raises(DeviceError, match=r"^diverged in round 2: .*; this device keeps its state from before it$"):
        device(config, lr).train_round(2, shared)
    after = held(device(config))
    assert (after.number, after.meta) == (before.number, before.meta)
    assert same(after.tensors, before.tensors)
    for number in (3, 4):
        update = device(config).train_round(number, shared)
        assert math.isfinite(update.metrics["loss"])
        assert fault(update.shared, shared) is None
        assert fault(under("method.", held(device(config)).tensors), shared) is None
    assert held(device(config)).meta["cursor"] == 3 * 32, "the images of the diverged round were read again"


@pytest.mark.parametrize("method", METHODS)
def test_the_first_round_of_a_device_may_diverge(smoke: Smoke, method: str) -> None:
    config = configured(smoke, method)
    shared = build_method(config).shared_state()
    with pytest.raises(DeviceError, match=r"^diverged in round 1"):
        device(config, 1e20).train_round(1, shared)
    assert device(config).store.newest() is None
    assert math.isfinite(device(config).train_round(2, shared).metrics["loss"])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("value", [torch.nan, 1e18])
def test_a_ruined_generation_of_an_earlier_version_costs_the_methods_part_and_no_image(
    smoke: Smoke, method: str, value: float, caplog: pytest.LogCaptureFixture
) -> None:
    config = configured(smoke, method)
    shared = build_method(config).shared_state()
    first = device(config)
    first.train_round(1, shared)
    kept = under("method.", held(first).tensors)
    for tensor in values(kept):
        tensor.fill_(value)
    tensors = over("buffer.", first.buffer.state_dict()) | over("method.", kept)
    first.store.save(Generation(0, tensors, held(first).meta), PARTS)
    again = device(config)
    update = again.train_round(2, shared)
    assert update.metrics["held"] == config.buffer * update.metrics["steps"], "every image is still there"
    assert fault(update.shared, shared) is None
    assert fault(again.trainer.method.local_state(), shared) is None
    warned = [record.getMessage() for record in caplog.records if record.name == "sofed_flwr.device.participant"]
    expected = "what the method kept cannot be used"
    assert [text.startswith(expected) for text in warned] == ([True] if kept else [])


@pytest.mark.parametrize("value", [torch.nan, -torch.inf])
def test_a_global_model_that_is_not_finite_is_refused(smoke: Smoke, value: float) -> None:
    config = smoke()
    shared = build_server(config).shared
    device(config).train_round(1, shared)
    before = held(device(config))
    name = "online.backbone.bn1.running_var" if "online.backbone.bn1.running_var" in shared else sorted(shared)[0]
    bad = {**shared, name: torch.full_like(shared[name], value)}
    with pytest.raises(DeviceError, match=rf"^the global model of round 2 cannot be used: {name} is not finite$"):
        device(config).train_round(2, bad)
    assert same(held(device(config)).tensors, before.tensors)
