"""Images without new content: a covered lens (one colour everywhere) and a frozen camera (the same image again)."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:  # the collector runs beside training on a small device, and must not load torch
    from sofed_flwr.core.records import Pixels


def digest_if_new(image: Pixels, last: str) -> str | None:
    """The image's digest, to be compared with the next one; None if it is blank or has the digest `last`."""
    if (image == image[:, :1, :1]).all():
        return None
    digest = hashlib.blake2b(np.ascontiguousarray(image).data, digest_size=16).hexdigest()
    return None if digest == last else digest
