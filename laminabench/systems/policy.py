"""The order of the queue: the built-in policies, and a user's own."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from laminabench.sim.simulate import Priority
from laminabench.traces.table import Trace
from laminabench.util.errors import UserError

BUILT_IN = ("fifo", "sjf", "deadline")
# A user's policy may answer with fractions; the queue compares whole numbers.
RESOLUTION = 1e6
LARGEST = 2**62


def priority_of(name: str, trace: Trace, slo_tbt_s: float) -> Priority | None:
    """Return the queue's key for a policy's name: fifo, sjf, deadline, or module:Class. Smaller goes first.

    A class of the user's is made with (trace, slo_tbt_s) and has a method priority(request) that gives a
    number for the row of a request; it is called once each time a request enters the queue.
    """
    if name == "fifo":
        return None
    if name == "sjf":
        outputs: list[int] = trace.output_tokens.tolist()
        return outputs.__getitem__
    if name == "deadline":
        # The moment by which the last token is due, if every token takes as long as it may.
        due = trace.arrival_s + trace.output_tokens * slo_tbt_s
        deadlines: list[int] = (due * RESOLUTION).astype("int64").tolist()
        return deadlines.__getitem__
    return _own(name, trace, slo_tbt_s)


def _own(name: str, trace: Trace, slo_tbt_s: float) -> Priority:
    if ":" not in name:
        raise UserError(
            "policy-unknown", f"--policy {name}: known are {', '.join(BUILT_IN)}, or your own as module:Class"
        )
    method: Callable[[int], float] = made("policy-failed", "--policy", name, "priority", trace, slo_tbt_s)

    def key(request: int) -> int:
        try:
            answer = round(method(request) * RESOLUTION)
        except (Exception, SystemExit) as error:
            raise UserError(
                "policy-failed", f"--policy {name}, request {request}: {type(error).__name__}: {error}"
            ) from error
        if abs(answer) > LARGEST:
            raise UserError(
                "policy-failed",
                f"--policy {name}, request {request}: {answer / RESOLUTION:g} is too large a priority",
            )
        return answer

    return key


def made(code: str, flag: str, name: str, method: str, *arguments: Any) -> Any:
    """Return the method of an instance made with these arguments; raise a UserError if there is none."""
    module_name, _, class_name = name.partition(":")
    try:
        # As `python -m` does: the user's own module is in the folder they stand in.
        sys.path.insert(0, str(Path.cwd()))
        try:
            one: Any = getattr(importlib.import_module(module_name), class_name)(*arguments)
        finally:
            sys.path.pop(0)
        return getattr(one, method)
    except (Exception, SystemExit) as error:
        raise UserError(code, f"{flag} {name}: {type(error).__name__}: {error}") from error
