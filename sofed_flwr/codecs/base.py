"""What a codec is: how a device's shared model becomes the tensors that travel, and how the server gets it back.

Both sides hold the global model of the round (`reference`), so a codec may send differences to it, coarser numbers or
a part of them. What a round leaves out need not be lost: a codec may keep it on the device (`memory`) and add it in
the next round (error feedback, Seide et al. 2014). The memory is stored in the device's state like the method's: it
belongs to one run, and if it is damaged, not finite or of another codec, `initial_memory` replaces it. A device
does not learn whether its reply counted: what a late or dropped one carried is lost.

Only uploads are encoded. The global model is sent unencoded, since both sides must hold the same one.

A codec returns named tensors, not bytes: `flower/messages.py` puts them into one safetensors array, and refuses what
is too large or cannot be parsed before a codec sees it. What a codec decodes still passes the gate.
"""

from typing import NamedTuple, Protocol

from sofed_flwr.core.records import State


class PayloadSize(NamedTuple):
    """How many tensors, and how many bytes of numbers in all of them."""

    tensors: int
    bytes: int


class Codec(Protocol):
    """Two pure functions, and what the server has to know before it calls the second one."""

    tolerance: float
    """Largest error of a decoded number, as a share of the largest change within its tensor; 0: equal."""

    def initial_memory(self, reference: State) -> State:
        """The memory of a device that has sent nothing yet: it has the names, shapes and types of every later one."""

    def encode(self, state: State, reference: State, memory: State) -> tuple[State, State]:
        """On the device: the tensors that travel, and the memory for the next round. No argument is changed."""

    def decode(self, payload: State, reference: State) -> State:
        """On the server: the state, or a `ValueError`; a hostile payload may hold any names, shapes and types.

        No tensor of the result may be larger than the reference's, whatever the payload says of itself.
        """

    def max_size(self, reference: State) -> PayloadSize:
        """The largest payload of this reference: a reply that has more is not parsed."""
