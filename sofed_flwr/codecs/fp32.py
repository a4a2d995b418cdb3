"""The shared model as it is: no error, no memory, and as many bytes as the model has."""

from sofed_flwr.codecs.base import PayloadSize
from sofed_flwr.core.records import State


class FP32:
    """Every tensor under its own name and in its own type, which is float32 for all that is trained."""

    tolerance = 0.0

    def initial_memory(self, reference: State) -> State:
        """Nothing is left out, so there is nothing to remember."""
        return {}

    def encode(self, state: State, reference: State, memory: State) -> tuple[State, State]:
        """The state itself."""
        return state, {}

    def decode(self, payload: State, reference: State) -> State:
        """The payload itself: its names and shapes are compared with the reference's where every reply's are."""
        return payload

    def max_size(self, reference: State) -> PayloadSize:
        """That of the reference."""
        return PayloadSize(len(reference), sum(tensor.nbytes for tensor in reference.values()))
