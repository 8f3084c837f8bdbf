"""A fork server whose prefill workers wait in the middle of long prompts as long as there is a file, and
cannot compute some: held.py FILE.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from lamina.model import prefill

prefill.CHUNK = 16  # before anybody has read it

from lamina.cluster import fork_server  # noqa: E402
from lamina.cluster.prefill_worker import PrefillJobs, PrefillRole  # noqa: E402

LONG = 60  # tokens
WRONG = 13
FILE = Path(sys.argv[1])
deliver, listen = PrefillRole._deliver, PrefillJobs.listen


def hold(orders: Any) -> None:
    listen(orders)
    order = orders._current
    begun = order.left < orders.layers * (len(order.text) - order.shared)
    while begun and order.wanted and len(order.text) >= LONG and FILE.exists():
        time.sleep(0.002)
        listen(orders)


def fail(role: Any, order: Any, layer: int, *rest: Any) -> None:
    if layer == 1 and len(order.text) == WRONG:
        raise MemoryError("bad luck")
    deliver(role, order, layer, *rest)


PrefillJobs.listen = hold  # type: ignore[assignment, method-assign]
PrefillRole._deliver = fail  # type: ignore[assignment, method-assign]
fork_server.main()
