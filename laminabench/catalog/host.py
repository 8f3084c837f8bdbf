"""The host of one system, where it is another than its cost set's."""

from __future__ import annotations

import re

from msgspec import structs

from laminabench.catalog.cost_terms import HostCost, Origin, coefficients
from laminabench.catalog.costs import CostSet
from laminabench.catalog.network import DURATION, in_seconds
from laminabench.catalog.server_host import REFERENCE, ServerHost, server_host
from laminabench.util.errors import UserError

# More is implausible for a token, and an iteration has to fit the simulator's clock.
LONGEST_HOST_S = 60.0

_TIME = re.compile(rf"\s*{DURATION}\s*")
_SERVER = re.compile(r"\s*vllm-(\d+(?:\.\d+)*)\s*")
# The keys of a host, and which of its times each one is.
_KEYS = {
    "in": ("request_in_s",),
    "serial": ("request_serial_s",),
    "out": ("out_s",),
    "launch": ("launch_dense_s", "launch_experts_s", "launch_latent_s"),
    "gap": ("gap_s",),
}
_SWITCH = {"on": True, "off": False}


def parse_host(text: str, flag: str = "--host") -> HostCost:
    """Parse a host: times of a step and each request, `5ms,20us`; a server, `vllm-0.18`; keys, `out=5ms`.

    What is not given takes nothing.
    """
    words, origin = text.split(","), Origin("given", f"{flag} {text}")
    try:
        host = ServerHost(0.0, 0.0, origin)
        if server := _SERVER.fullmatch(words[0]):
            host, words = server_host(server[1], REFERENCE), words[1:]
            origin = structs.replace(origin, source=f"{flag} {text}: {host.origin.source}")
            host = structs.replace(host, origin=origin)
        times = [word for word in words if "=" not in word]
        for name, word in zip(("per_step_s", "per_request_s"), times, strict=False):
            host = structs.replace(host, **{name: _seconds(word)})
        keys = dict(word.strip().split("=") for word in words if "=" in word)
        if len(times) > 2 or len(keys) + len(times) < len(words):
            raise ValueError(text)
        if (switch := keys.pop("async", None)) is not None:
            host = structs.replace(host, asynchronous=_SWITCH[switch])
        factor = float(keys.pop("factor", 1.0))
        if not 0 < factor <= 100:
            raise ValueError(text)
        host = host.scaled(factor)
        for key, word in keys.items():
            host = structs.replace(host, **dict.fromkeys(_KEYS[key], _seconds(word)))
    except (ValueError, KeyError):
        raise UserError(
            "host-unreadable",
            f"{flag} {text}: expected what an iteration takes and, if there is one, each request, as 5ms or "
            f"2ms,20us; or vllm-0.18; or keys of {', '.join(_KEYS)}, async=on and factor=0.75",
        ) from None
    if max(getattr(host, name) for name in coefficients(ServerHost)) > LONGEST_HOST_S:
        raise UserError("host-too-long", f"{flag} {text}: a host takes at most {LONGEST_HOST_S:g} s")
    plain = HostCost(host.per_step_s, host.per_request_s, origin)
    return plain if host == ServerHost(host.per_step_s, host.per_request_s, origin) else host


def _seconds(text: str) -> float:
    if (match := _TIME.fullmatch(text)) is None:
        raise ValueError(text)
    return in_seconds(match[1], match[2])


def with_host(costs: CostSet, host: HostCost | None) -> CostSet:
    """Return the set with this host and, unless it has one, its own gap; with None, the set itself."""
    if host is None:
        return costs
    return structs.replace(costs, host=structs.replace(host, gap_s=host.gap_s or costs.host.gap_s))


def schedules_ahead(host: HostCost, flag: bool) -> bool:
    """Return whether a server schedules a step ahead: as its host says, or else the flag."""
    own = host.asynchronous if isinstance(host, ServerHost) else None
    return flag if own is None else own
