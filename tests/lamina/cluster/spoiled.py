"""A fork server whose workers misbehave once, as soon as a file says how: spoiled.py FILE."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from lamina.cluster import fork_server
from lamina.cluster.messages import ChosenTokens, Order
from lamina.cluster.model_worker import ModelRole
from lamina.fhbn.control import Deadline

ORDER = Path(sys.argv[1])
land = ModelRole._land


def misbehave(role: Any, lane: Any, turn: Any, choice: Any) -> None:
    try:
        how = ORDER.read_text()
        ORDER.unlink()
    except OSError:
        return land(role, lane, turn, choice)
    if how == "few":
        role._front.send(ChosenTokens(turn.batch, choice.tokens[1:]))
    elif how == "many":
        role._front.send(ChosenTokens(turn.batch, choice.tokens + (1 << 40)))
    elif how == "nonsense":
        role._front._control.send(b"\0" + msgspec.msgpack.encode({"landed": "soon"}), Deadline(5))
    elif how == "misplaced":
        role._front.send(Order("activity"))
    elif how == "nobody's":
        role._front.send(ChosenTokens(1 << 20, choice.tokens))
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
