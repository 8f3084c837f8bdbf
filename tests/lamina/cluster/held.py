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
from lamina.cluster.prefill_worker import PrefillRole  # noqa: E402

LONG = 60  # tokens
WRONG = 13
FILE = Path(sys.argv[1])
deliver, listen = PrefillRole._deliver, PrefillRole._listen


def hold(role: Any) -> None:
    listen(role)
    job = role._current
    begun = job.left < len(role._sights) * (len(job.text) - job.shared)
    while begun and job.wanted and len(job.text) >= LONG and FILE.exists():
        time.sleep(0.002)
        listen(role)


def fail(role: Any, order: Any, layer: int, *rest: Any) -> None:
    if layer == 1 and len(order.text) == WRONG:
        raise MemoryError("bad luck")
    deliver(role, order, layer, *rest)


PrefillRole._listen = hold  # type: ignore[assignment, method-assign]
PrefillRole._deliver = fail  # type: ignore[assignment, method-assign]
fork_server.main()
