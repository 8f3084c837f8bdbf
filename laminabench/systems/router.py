"""The routing of requests to instances: the built-in routers, and a user's own."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from laminabench.requests.replay import FIELDS, ReplayRequest
from laminabench.systems import policy
from laminabench.traces.table import Trace
from laminabench.util.errors import UserError

Tokens: TypeAlias = NDArray[np.int64]
# (prompt_tokens, output_tokens, prefix, requests, kv_tokens) -> instance
Choice: TypeAlias = Callable[[int, int, Tokens, Tokens, Tokens], int]

BUILT_IN = ("round-robin", "least-requests", "least-kv", "prefix", "fit")


def own_router(name: str, instances: int) -> Choice:
    """Return the router of a name module:Class; raise a UserError without it, and when it fails.

    The class is made with (instances) and has a method route(prompt_tokens, output_tokens, prefix, requests,
    kv_tokens) that says which instance a request goes to, from 0 on. `prefix` are ids of the prompt's leading
    blocks, `requests` and `kv_tokens` what each instance has and may need.
    """
    require_known(name)
    method: Callable[..., object] = policy.made("router-failed", "--router", name, "route", instances)

    def route(prompt: int, output: int, prefix: Tokens, requests: Tokens, kv_tokens: Tokens) -> int:
        try:
            chosen = operator.index(method(prompt, output, prefix, requests, kv_tokens))  # type: ignore[arg-type]
        except (Exception, SystemExit) as error:
            raise UserError("router-failed", f"--router {name}: {type(error).__name__}: {error}") from error
        if not 0 <= chosen < instances:
            raise UserError(
                "router-failed",
                f"--router {name}: it chose instance {chosen}; there are 0 to {instances - 1}",
            )
        return chosen

    return route


def require_several(request: ReplayRequest, instances: int) -> None:
    """Raise a UserError for a choice of instance, or of where to wait, where there is only one.

    With --instances 1 it is a row of a sweep.
    """
    for name in ("router", "queue"):
        if request.is_set(name) and instances == 1 and request.instances is None:
            raise UserError(
                "replay-flag-unused",
                f"{FIELDS[name].flag} is for several instances, and "
                f"{request.deployment or 'every deployment'} is one; add --instances N",
            )


def require_known(name: str) -> None:
    """Raise a UserError for a router that is neither built in nor a user's own."""
    if name not in BUILT_IN and ":" not in name:
        raise UserError(
            "router-unknown", f"--router {name}: known are {', '.join(BUILT_IN)}, or your own as module:Class"
        )


def require_prefixes(name: str, trace: Trace) -> None:
    """Raise a UserError where a router would go by what is not known."""
    if name == "prefix" and trace.prefix_blocks is None:
        raise UserError(
            "router-no-prefixes",
            f"--router prefix: {trace.meta.name} does not say which prompts share a prefix; use another "
            "router, or a trace with prefix blocks such as kimi-conv",
        )
