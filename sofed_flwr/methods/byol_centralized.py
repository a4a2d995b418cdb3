"""Centralized BYOL: one node holds the whole stream, the paper's upper bound (Table 1)."""

from sofed_flwr.methods.byol import BYOL


class CentralizedBYOL(BYOL):
    """The only client, so a round's mean is this node's own model."""

    most_clients = 1
