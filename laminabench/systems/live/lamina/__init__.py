"""The reference engine on this machine: a replay by real clocks, and `laminabench serve`."""

from __future__ import annotations

from laminabench.requests.replay import LIVE_LAMINA, taken_by
from laminabench.systems.base import Live

SYSTEM = Live(
    __name__,
    taken_by(LIVE_LAMINA),
    {},
    "times are the clock's, and every worker has its memory to itself, see --kv-tokens",
    CALIBRATED="cpu-core",
    CALIBRATION_TAKES=frozenset({"ray", "device"}),
)
