"""Facts as JSON has them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def finite(fact: Any) -> Any:
    """null for what JSON cannot say: numbers without an end, such as that of an open window."""
    if isinstance(fact, Mapping):
        return {name: finite(inner) for name, inner in fact.items()}
    if isinstance(fact, list | tuple):
        return [finite(inner) for inner in fact]
    return None if isinstance(fact, float) and not math.isfinite(fact) else fact
