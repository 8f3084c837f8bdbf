"""Any OpenAI-compatible server, over HTTP."""

from __future__ import annotations

from laminabench.requests.replay import OPENAI, taken_by
from laminabench.systems.base import Live

SYSTEM = Live(
    __name__,
    taken_by(OPENAI),
    # The server decides the order of requests.
    {"policy": "fifo"},
    "the server has been started already, and its workers are not visible",
)
