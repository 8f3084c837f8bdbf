"""A fork server for whose workers prompts of some lengths are slow, or deadly: harmful.py FILE. Each line
has a length and what comes of that: "slow", "fail", "kill", "rest" (do nothing any more).
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from lamina.model import prefill

prefill.CHUNK = 16  # before anybody has read it

from lamina.cluster import fork_server  # noqa: E402
from lamina.cluster.model_worker import ModelRole  # noqa: E402
from lamina.cluster.prefill_worker import PrefillRole  # noqa: E402

SLOW_S = 0.2  # a chunk
FILE = Path(sys.argv[1])
call = prefill.Prefill.call
roles: list[Any] = []


def harm(self: Any, some: Any, *rest: Any) -> Any:
    harms = dict(line.split() for line in FILE.read_text().splitlines()) if FILE.exists() else {}
    for one in some:
        match harms.get(str(one.run.tokens)):
            case "slow":
                time.sleep(SLOW_S)
            case "fail":
                os.abort()
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "rest":
                roles[0]._heartbeat.stop()
                time.sleep(1e6)
    return call(self, some, *rest)


def noted(role: type) -> None:
    begin = role.__init__  # type: ignore[misc]

    def init(self: Any, *given: Any) -> None:
        roles.append(self)
        begin(self, *given)

    role.__init__ = init  # type: ignore[misc]


noted(ModelRole)
noted(PrefillRole)
prefill.Prefill.call = harm  # type: ignore[method-assign]
fork_server.main()
