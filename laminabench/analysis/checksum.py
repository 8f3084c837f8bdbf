"""A checksum of a replay's tokens, to compare a run with faults against one without."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np


def tokens_sha256(tokens: Iterable[Sequence[int]]) -> str:
    """Hash the tokens of all requests in the trace's order: their number and ids, as 64-bit numbers."""
    digest = hashlib.sha256()
    for row in tokens:
        digest.update(np.array([len(row), *row], "<i8").tobytes())
    return digest.hexdigest()
