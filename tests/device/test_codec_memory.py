"""What a codec remembers on a device: saved with the round, read back, and given up where it is not to be trusted."""

from collections.abc import Callable

import pytest
import torch

from sofed_flwr.build import build_device, build_method
from sofed_flwr.config.schema import RunConfig
from sofed_flwr.core.records import State
from sofed_flwr.core.state_dicts import under
from sofed_flwr.device.participant import PARTS, Device
from sofed_flwr.storage.generations import Generation
from tests.support.codecs import Halves
from tests.support.federation import same

Smoke = Callable[..., RunConfig]


class Watched(Halves):
    """Notes with which memory it was called."""

    def encode(self, state: State, reference: State, memory: State) -> tuple[State, State]:
        self.given = memory
        return super().encode(state, reference, memory)


def device(config: RunConfig, run: str = "run") -> Device:
    made = build_device(config, run, 0)
    made.codec = Watched()
    return made


def kept(made: Device) -> Generation:
    found = made.store.newest()
    assert found is not None
    return found


def is_new(memory: State) -> bool:
    return bool(memory) and not any(tensor.any() for tensor in memory.values())


@pytest.fixture
def config(smoke: Smoke) -> RunConfig:
    return smoke("evaluation=none")


@pytest.fixture
def shared(config: RunConfig) -> State:
    return build_method(config).shared_state()


def test_a_round_goes_on_with_the_memory_of_the_round_before_and_a_repeated_one_again(
    config: RunConfig, shared: State
) -> None:
    first = device(config)
    update = first.train_round(1, shared)
    assert is_new(first.codec.given)
    assert all(tensor.dtype == torch.float16 for tensor in update.shared.values() if tensor.is_floating_point())
    memory = under("codec.", kept(first).tensors)
    assert not is_new(memory)
    updates = []
    for again in (device(config), device(config)):
        updates.append(again.train_round(2, shared).shared)
        assert same(again.codec.given, memory)
    assert same(*updates)


def test_another_run_starts_with_a_new_memory(config: RunConfig, shared: State) -> None:
    device(config).train_round(1, shared)
    other = device(config, "another run")
    other.train_round(2, shared)
    assert is_new(other.codec.given)


@pytest.mark.parametrize("fault", ["not finite", "too long", "another codec's", "of an earlier version"])
def test_a_memory_that_cannot_be_used_costs_the_memory_alone(
    config: RunConfig, shared: State, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    first = device(config)
    first.train_round(1, shared)
    held = kept(first)
    memory = [name for name in held.tensors if name.startswith("codec.")]
    if fault in ("not finite", "too long"):
        held.tensors[memory[0]].fill_(torch.nan if fault == "not finite" else 1e18)
    else:
        for name in memory:
            del held.tensors[name]
        held.tensors.update({"codec.levels": torch.zeros(3)} if fault == "another codec's" else {})
    first.store.save(held, PARTS)
    again = device(config)
    update = again.train_round(2, shared)
    assert is_new(again.codec.given)
    assert update.metrics["held"] == config.buffer * update.metrics["steps"], "every image is still there"
    warned = [record.getMessage() for record in caplog.records if record.name == "sofed_flwr.device.participant"]
    expected = [] if fault == "of an earlier version" else ["what the codec kept cannot be used ("]
    assert [text[: len("what the codec kept cannot be used (")] for text in warned] == expected


def test_a_rotten_byte_in_it_costs_neither_images_nor_the_methods_part(
    config: RunConfig, shared: State, caplog: pytest.LogCaptureFixture
) -> None:
    first = device(config)
    first.train_round(1, shared)
    held = kept(first)
    (path,) = first.store.directory.glob("*.safetensors")
    content = bytearray(path.read_bytes())
    rotten = held.tensors["codec.online.backbone.conv1.weight"].numpy().tobytes()
    content[content.index(rotten)] ^= 0xFF
    path.write_bytes(content)
    found = kept(device(config))
    assert found.tensors.keys() == {name for name in held.tensors if not name.startswith("codec.")}
    assert "what it holds under codec. is damaged and left out" in caplog.text
    again = device(config)
    again.train_round(2, shared)
    assert is_new(again.codec.given)


def test_a_round_without_images_leaves_the_memory_as_it_was(config: RunConfig, shared: State) -> None:
    first = device(config)
    first.train_round(1, shared)
    memory = under("codec.", kept(first).tensors)
    second = device(config)
    second.trainer.train = lambda *_: {"steps": 0}  # type: ignore[method-assign,assignment,return-value]
    with pytest.raises(Exception, match="images so far"):
        second.train_round(2, shared)
    assert same(under("codec.", kept(second).tensors), memory)


def test_fp32_leaves_nothing_in_a_devices_state(config: RunConfig, shared: State) -> None:
    made = build_device(config, "run", 0)
    made.train_round(1, shared)
    assert not under("codec.", kept(made).tensors)
