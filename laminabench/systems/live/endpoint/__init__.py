"""Any OpenAI-compatible server, over HTTP: which choices it takes, and a request made ready for it."""

from __future__ import annotations

from collections.abc import Mapping

from laminabench.listener import Listener
from laminabench.request import FLAGS, SERVER, ReplayRequest
from laminabench.systems.base import Prepared

TAKES = frozenset(FLAGS[SERVER])
# The server decides who goes first.
ANYWAY: Mapping[str, object] = {"policy": "fifo"}
WHY_NOT = "the server has been started already, and nothing is seen of its workers"


def prepare(request: ReplayRequest, listener: Listener) -> Prepared:
    """The request settled; a UserError for what is missing or contradicts."""
    from laminabench.systems.live.endpoint.prepared import prepare as prepared

    return prepared(request, listener)
