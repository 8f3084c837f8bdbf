"""Networks between model and attention workers: what a transfer costs, by engine."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

from laminabench.catalog.entries import Table, packaged, pick
from laminabench.util.errors import UserError

# A slower one is useless for decoding, and a layer's transfers have to fit the simulator's clock.
LONGEST_RTT_S = 60.0

# A number and its unit; `in_seconds` takes the two.
DURATION = r"([\d.]+)\s*(us|ms)"
_OWN = re.compile(rf"\s*{DURATION}\s*,\s*([\d.]+)\s*(GB/s|Gb/s|Gbit/s|Gbps)\s*")


@dataclass(frozen=True, slots=True)
class Network:
    """A way to move tensors between workers: a round trip, and a bandwidth of each NIC."""

    name: str
    title: str
    rtt_s: float
    bandwidth_bytes_per_s: float
    line_rate_bytes_per_s: float  # of the NICs it was measured on
    kind: str  # published, derived, assumed, measured or given
    source: str

    def on(self, nic_bytes_per_s: float) -> Network:
        """Scale the engine to NICs of this rate: never faster than measured, slower in proportion."""
        share = min(1.0, nic_bytes_per_s / self.line_rate_bytes_per_s)
        return replace(self, bandwidth_bytes_per_s=self.bandwidth_bytes_per_s * share)


@cache
def load_networks() -> Mapping[str, Network]:
    return networks_in(packaged("network.toml"))


def networks_in(rows: Mapping[str, Table]) -> dict[str, Network]:
    """Return the networks in a file, by name."""
    return {
        name: Network(
            name=name,
            title=row["title"],
            rtt_s=row["rtt_us"] * 1e-6,
            bandwidth_bytes_per_s=row["bandwidth_gb_per_s"] * 1e9,
            line_rate_bytes_per_s=row["line_rate_gbit_per_s"] / 8 * 1e9,
            kind=row["kind"],
            source=row["source"],
        )
        for name, row in rows.items()
    }


NO_NETWORKS: Mapping[str, Network] = {}


def network_of(own: Mapping[str, Network], usual: str) -> Network:
    """Return the default network: the one a cost set has measured, else the usual one."""
    return parse_network(next(iter(own), usual), own)


def in_seconds(number: str, unit: str) -> float:
    """Parse a duration in seconds; a ValueError if it is no number."""
    return float(number) * (1e-3 if unit == "ms" else 1e-6)


def parse_network(text: str, own: Mapping[str, Network] = NO_NETWORKS) -> Network:
    """Return a network by name, or one's own numbers: `40us,42GB/s` (round trip, bandwidth a NIC).

    `own` are a cost set's, which go before the catalogue's of the same name.
    """
    match = _OWN.fullmatch(text)
    if match is None:
        return pick("network", text, {**load_networks(), **own}, hint="(or give your own: 40us,42GB/s)")
    try:
        rtt_s = in_seconds(match[1], match[2])
        rate = float(match[3]) * 1e9 / (1 if match[4] == "GB/s" else 8)
    except ValueError as error:
        raise UserError(
            "network-unreadable", f"network {text!r}: not numbers; write it like 40us,42GB/s"
        ) from error
    if rate <= 0:
        raise UserError("network-no-bandwidth", f"network {text!r}: the bandwidth must be above 0")
    if rtt_s > LONGEST_RTT_S:
        raise UserError(
            "network-round-trip-too-long",
            f"network {text!r}: a round trip of {rtt_s:g} s is longer than {LONGEST_RTT_S:g} s",
        )
    # One's own numbers hold on one's own NICs: no scaling to the catalogue's.
    return Network(text.strip(), "given by the user", rtt_s, rate, 1.0, "given", "--network")
