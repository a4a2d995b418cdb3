"""Several states in one: names get a prefix on the way in and lose it on the way out."""

from sofed_flwr.contracts import State


def over(prefix: str, state: State) -> State:
    """The same tensors, every name with the prefix."""
    return {prefix + name: tensor for name, tensor in state.items()}


def under(prefix: str, state: State) -> State:
    """The tensors that have the prefix, by their names without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}
