"""What an aggregator is: accepted updates of one round -> the next global model."""

from collections.abc import Sequence
from typing import Protocol

from sofed_flwr.contracts import State, Update


class Aggregator(Protocol):
    """Gets only updates that passed the gate, in order of device number, so that sums round the same way every time."""

    def aggregate(self, updates: Sequence[Update], current: State) -> State:
        """Combine; names, shapes and dtypes of the result are those of `current`."""
