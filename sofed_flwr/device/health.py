"""Whether a state may be kept: a diverged one would spoil every later round.

NaN and infinity are the simple case. A step that is far too long can also leave finite weights, since BatchNorm removes
their scale: with a learning rate of 1e3 the loss stays near 3 while a target ends at 300 times its length, which
its moving average needs a thousand steps to forget. No honest round makes a model a hundred times as long.
"""

import math

import torch

from sofed_flwr.core.records import State
from sofed_flwr.core.state_dicts import is_parameter, not_finite

LONGEST = 100.0
"""Times the length of the global model; rounds that learned well stayed below 2, a learning rate of 10 gives 300."""


def fault(state: State, reference: State) -> str | None:
    """Why a state must not be kept beside this global model, or None."""
    if (name := not_finite(state)) is not None:
        return f"{name} is not finite"
    times = _length(state) / max(_length(reference), 1.0)
    return f"it is {times:.0e} times as long as the global model" if times > LONGEST else None


def _length(state: State) -> float:
    """Of the parameters as one vector; scalars are numbers of the method's own and do not count."""
    return math.hypot(
        *(
            float(torch.linalg.vector_norm(tensor, dtype=torch.float64))
            for name, tensor in state.items()
            if tensor.dim() and is_parameter(name, tensor)
        )
    )
