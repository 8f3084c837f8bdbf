"""The reference engine on devices that are not here: workers wait as long as a cost set says they take."""

from __future__ import annotations

from laminabench.requests.replay import EMULATED, taken_by
from laminabench.systems.base import Live

SYSTEM = Live(
    __name__,
    taken_by(EMULATED),
    {"prefill": "off", "admission": "reserve", "kv_overcommit": 1.0, "stream_chunks": 1},
    "an emulated worker waits for slices and attention of one engine, as the cost set has them, and decodes "
    "alone",
)
