"""What a Flower strategy remembers between rounds, for the server's checkpoint: one function for all strategies.

Flower's strategies expect one process from the first round to the last; a resumed run must give the same result as an
uninterrupted one. All arrays in a strategy's attributes (FedAvgM's `momentum_vector`, FedAdam's `m_t` and `v_t`) are
its memory, except the global model itself, which the server has.
"""

from typing import Any

import numpy as np
import torch

from sofed_flwr.core.records import State

GLOBAL_MODEL = "current_arrays"
ARRAYS = (np.ndarray, np.generic)
"""numpy's arithmetic turns an array without dimensions into a scalar."""


def remembered(strategy: object) -> State:
    """Arrays by attribute and name, `m_t/online.conv1.weight`; the entries of a list by their position."""
    found: State = {}
    for attribute, value in vars(strategy).items():
        if attribute != GLOBAL_MODEL:
            entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
            arrays = {key: entry for key, entry in entries if isinstance(entry, ARRAYS)}
            found |= {f"{attribute}/{key}": torch.from_numpy(np.array(array)) for key, array in arrays.items()}
    return found


def recall(strategy: object, state: State) -> None:
    """Set the attributes that `remembered` read, and clear the others; in a list the names are numbers."""
    attributes: dict[str, dict[str, Any]] = {name.partition("/")[0]: {} for name in remembered(strategy)}
    for name, tensor in state.items():
        attribute, _, key = name.partition("/")
        attributes.setdefault(attribute, {})[key] = tensor.numpy().copy()
    for attribute, arrays in attributes.items():
        numbered = all(key.isdigit() for key in arrays)
        listed = [arrays[str(place)] for place in range(len(arrays))] if numbered else arrays
        setattr(strategy, attribute, listed if arrays else None)
