"""The host of one system, where it is another than its cost set's."""

from __future__ import annotations

import re

import msgspec

from laminabench.catalog.cost_terms import HostCost, Origin
from laminabench.catalog.costs import CostSet
from laminabench.catalog.network import DURATION, in_seconds
from laminabench.util.errors import UserError

# Nobody waits longer for a token, and an iteration has to fit the simulator's clock.
LONGEST_HOST_S = 60.0

_HOST = re.compile(rf"\s*{DURATION}\s*(?:,\s*{DURATION}\s*)?")


def parse_host(text: str, flag: str = "--host") -> HostCost:
    """Parse the host time of each iteration, `5ms` or `5ms,20us`: in all, and for each request."""
    match = _HOST.fullmatch(text)
    try:
        if match is None:
            raise ValueError(text)
        per_step, per_request = in_seconds(match[1], match[2]), in_seconds(match[3] or "0", match[4] or "us")
    except ValueError:
        raise UserError(
            "host-unreadable",
            f"{flag} {text}: expected what an iteration takes and, if there is one, each request: 5ms or "
            "2ms,20us",
        ) from None
    if max(per_step, per_request) > LONGEST_HOST_S:
        raise UserError("host-too-long", f"{flag} {text}: a host takes at most {LONGEST_HOST_S:g} s")
    return HostCost(per_step, per_request, Origin("given", f"{flag} {text}"))


def with_host(costs: CostSet, host: HostCost | None) -> CostSet:
    """Return the set with this host, its own gap unchanged; with None, the set itself."""
    if host is None:
        return costs
    return msgspec.structs.replace(costs, host=msgspec.structs.replace(host, gap_s=costs.host.gap_s))
