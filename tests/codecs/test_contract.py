"""What every yaml of conf/codec keeps to, and a codec with a memory that exists for tests only."""

import pytest
import torch
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict

from sofed_flwr.build import build_codec
from sofed_flwr.codecs.base import Codec
from sofed_flwr.config.compose import compose
from sofed_flwr.core.records import State, Update
from sofed_flwr.core.state_dicts import unlike
from sofed_flwr.device.health import fault
from sofed_flwr.flower.messages import HEADER_BYTES, pack_update, unpack_update
from sofed_flwr.server.gate import misfit
from sofed_flwr.storage.tensor_file import Parts, decode, encode
from tests.flower.test_messages import task_message
from tests.support.codecs import Halves
from tests.support.federation import conf_names, same

pytestmark = pytest.mark.usefixtures("_inside_a_run")
CODECS: dict[str, Codec] = {
    **{name: build_codec(compose([f"codec={name}"])) for name in conf_names("codec")},
    "one with a memory": Halves(),
}
every_codec = pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS.keys())


def model(seed: int) -> State:
    generator = torch.Generator().manual_seed(seed)
    return {
        "online.conv.weight": torch.randn(8, 3, 3, 3, generator=generator),
        "online.bn.running_mean": torch.randn(8, generator=generator),
        "online.bn.num_batches_tracked": torch.tensor(seed),
        "scale": torch.randn((), generator=generator),
    }


REFERENCE = model(0)


@every_codec
def test_what_is_decoded_is_what_was_encoded_within_the_tolerance(codec: Codec) -> None:
    state, reference, memory = model(1), model(0), codec.initial_memory(REFERENCE)
    payload, _ = codec.encode(state, reference, memory)
    found = codec.decode(payload, reference)
    assert unlike(found, state, "ours") is None
    for name, tensor in state.items():
        changed = float((tensor - reference[name]).abs().max())
        assert float((found[name] - tensor).abs().max()) <= codec.tolerance * changed, name
    assert same(state, model(1))
    assert same(reference, model(0))
    assert same(memory, codec.initial_memory(REFERENCE))


@every_codec
def test_an_update_travels_within_the_size_that_the_codec_states(codec: Codec) -> None:
    payload, _ = codec.encode(model(1), REFERENCE, codec.initial_memory(REFERENCE))
    most = codec.max_size(REFERENCE)
    assert len(payload) <= most.tensors
    assert sum(tensor.nbytes for tensor in payload.values()) <= most.bytes
    found = unpack_update(pack_update(Update(3, 7, payload), task_message()), 3, REFERENCE, codec)
    assert same(found.shared, codec.decode(payload, REFERENCE))
    assert found.metrics["bytes_up"] <= most.bytes + HEADER_BYTES * most.tensors


def reply(content: bytes) -> Message:
    array = Array("uint8", (len(content),), "safetensors", content)
    records = RecordDict({"shared": ArrayRecord({"model": array}), "counts": MetricRecord({"round": 7})})
    return Message(records, reply_to=task_message())


@every_codec
@pytest.mark.parametrize("garbage", [b"", b"x" * 100, b"\0" * 100, b"x" * 10**6], ids=["no", "x", "zero", "many"])
def test_garbage_is_an_error_about_that_reply(codec: Codec, garbage: bytes) -> None:
    with pytest.raises(ValueError, match=r"^the model "):
        unpack_update(reply(garbage), 3, REFERENCE, codec)


@every_codec
def test_a_payload_that_was_not_encoded_is_refused_by_the_codec_or_by_the_gate(codec: Codec) -> None:
    payload, _ = codec.encode(model(1), REFERENCE, codec.initial_memory(REFERENCE))
    forged: list[State] = [{}, {**payload, "pixels": torch.zeros(1)}]
    for name, tensor in payload.items():
        forged.append({other: payload[other] for other in payload if other != name})
        forged += [{**payload, name: odd} for odd in (tensor.flatten()[:0], tensor[None], tensor.double(), tensor > 0)]
    for state in forged:
        try:
            found = codec.decode(state, REFERENCE)
        except ValueError:
            continue
        assert misfit(Update(3, 7, found), REFERENCE, round_number=7) is not None


@every_codec
def test_a_memory_keeps_its_form_and_survives_the_disk(codec: Codec) -> None:
    memory = codec.initial_memory(REFERENCE)
    for seed in (1, 2):
        _, memory = codec.encode(model(seed), REFERENCE, memory)
        assert unlike(memory, codec.initial_memory(REFERENCE), "ours") is None
        assert fault(memory, REFERENCE) is None, "a device would refuse to keep it"
    read = decode(encode(memory, {}, Parts())).tensors
    payloads = [codec.encode(model(3), REFERENCE, held)[0] for held in (memory, read)]
    assert same(*payloads)


def test_fp32_sends_the_tensors_themselves_and_remembers_nothing() -> None:
    state = model(1)
    payload, memory = CODECS["fp32"].encode(state, REFERENCE, {})
    assert all(payload[name] is tensor for name, tensor in state.items())
    assert memory == CODECS["fp32"].initial_memory(REFERENCE) == {}
