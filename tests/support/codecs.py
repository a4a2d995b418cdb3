"""A codec with a memory: what all tests of the codec's room need, and fp32 does not have."""

import torch

from sofed_flwr.codecs.base import PayloadSize
from sofed_flwr.core.records import State


class Halves:
    """Changes as float16; what rounding left out is added in the next round (error feedback)."""

    tolerance = 2**-10

    def initial_memory(self, reference: State) -> State:
        return {name: torch.zeros_like(tensor) for name, tensor in reference.items() if tensor.is_floating_point()}

    def encode(self, state: State, reference: State, memory: State) -> tuple[State, State]:
        wanted = {name: state[name] - reference[name] + memory[name] for name in memory}
        sent = {name: change.half() for name, change in wanted.items()}
        left = {name: (change - sent[name]).to(memory[name].dtype) for name, change in wanted.items()}
        return {name: sent.get(name, tensor) for name, tensor in state.items()}, left

    def decode(self, payload: State, reference: State) -> State:
        if payload.keys() != reference.keys():
            raise ValueError("the names are not the global model's")
        decoded = {}
        for name, tensor in reference.items():
            expected = torch.float16 if tensor.is_floating_point() else tensor.dtype
            if (payload[name].shape, payload[name].dtype) != (tensor.shape, expected):
                raise ValueError(f"{name} is not a change of the global model")
            decoded[name] = (tensor + payload[name]).to(tensor.dtype) if tensor.is_floating_point() else payload[name]
        return decoded

    def max_size(self, reference: State) -> PayloadSize:
        sizes = [tensor.numel() * 2 if tensor.is_floating_point() else tensor.nbytes for tensor in reference.values()]
        return PayloadSize(len(reference), sum(sizes))
