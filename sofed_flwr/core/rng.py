"""Every random draw of a run, derived from (seed, who, round, purpose).

Generators are made when needed and never persisted or shared, so the order in which clients run, the number of
workers and a restart in the middle change nothing: the same seed gives the same encoder.
"""

import hashlib

import numpy as np
import torch

SERVER = -1
"""Stands for the server where a client's number is expected."""


def derive(seed: int, client: int, round_number: int, purpose: str) -> int:
    """A 63-bit seed that differs whenever any part differs (Python's own hash is salted per process)."""
    text = f"{seed}/{client}/{round_number}/{purpose}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def generator(seed: int, client: int, round_number: int, purpose: str) -> torch.Generator:
    """The torch generator of one purpose in one round of one client."""
    return torch.Generator().manual_seed(derive(seed, client, round_number, purpose))


def numpy_generator(seed: int, purpose: str) -> np.random.Generator:
    """The numpy generator of a purpose that concerns the whole run: generating data, ordering and dealing it."""
    return np.random.default_rng(derive(seed, SERVER, 0, purpose))
