"""A nursery whose workers misbehave once, as soon as a file says how: spoiled.py FILE."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from lamina.cluster import fork_server
from lamina.cluster.model_worker import ModelRole

ORDER = Path(sys.argv[1])
land = ModelRole._land


def misbehave(role: Any, lane: Any, turn: Any, choice: Any) -> None:
    try:
        how = ORDER.read_text()
        ORDER.unlink()
    except OSError:
        return land(role, lane, turn, choice)
    if how == "few":
        role._front.say({"landed": turn.batch, "tokens": choice.tokens[1:].tobytes()})
    elif how == "many":
        role._front.say({"landed": turn.batch, "tokens": (choice.tokens + (1 << 40)).tobytes()})
    elif how == "nonsense":
        role._front.say({"landed": "soon", "tokens": 7})
    elif how == "nobody's":
        role._front.say({"landed": 1 << 20, "tokens": b""})
    elif how == "hang up":
        role._front._control._socket.shutdown(2)
    elif how == "fail":
        raise ZeroDivisionError("nothing divides")
    elif how == "sleep":
        role._heartbeat.start("slice")
        time.sleep(1e6)
    return None


ModelRole._land = misbehave  # type: ignore[method-assign]
fork_server.main()
