"""A fork server whose prefill workers wait in the middle of long prompts as long as there is a file, and
cannot compute some: staged.py FILE.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from lamina.cluster import fork_server, prefill_worker
from lamina.cluster.prefill_worker import PrefillRole

prefill_worker.CHUNK = 16

LONG = 60  # tokens
WRONG = 13
FILE = Path(sys.argv[1])
deliver, listen = PrefillRole._deliver, PrefillRole._listen


def hold(role: Any) -> None:
    listen(role)
    if not role._current:
        return
    job = role._current[0]
    begun = job.left < len(role._sights) * (len(job.text) - job.shared)
    while begun and job.needed and len(job.text) >= LONG and FILE.exists():
        time.sleep(0.002)
        listen(role)


def fail(role: Any, order: Any, layer: int, *rest: Any) -> None:
    if layer == 1 and len(order.text) == WRONG:
        raise MemoryError("bad luck")
    deliver(role, order, layer, *rest)


PrefillRole._listen = hold  # type: ignore[assignment, method-assign]
PrefillRole._deliver = fail  # type: ignore[assignment, method-assign]
fork_server.main()
