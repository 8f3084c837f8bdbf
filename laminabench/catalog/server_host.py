"""The host of a vLLM server: its front end, launches outside CUDA graphs, and its time between steps."""

from __future__ import annotations

from functools import cache
from typing import Annotated, NamedTuple

import msgspec

from laminabench.catalog.cost_terms import US, Coefficient, HostCost, Origin
from laminabench.catalog.entries import Table, packaged
from laminabench.catalog.models import ModelShape


class ServerHost(HostCost, frozen=True):
    """A host with a front end, which takes requests one after the other, and launches of each layer.

    Launches are those of iterations that are in no graph, of a layer by its kind.
    """

    request_in_s: Annotated[float, Coefficient("request_in_us", US, "time")] = 0.0
    request_serial_s: Annotated[float, Coefficient("request_serial_us", US, "time")] = 0.0
    out_s: Annotated[float, Coefficient("out_us", US, "time")] = 0.0
    launch_dense_s: Annotated[float, Coefficient("launch_dense_us", US, "time")] = 0.0
    launch_experts_s: Annotated[float, Coefficient("launch_experts_us", US, "time")] = 0.0
    launch_latent_s: Annotated[float, Coefficient("launch_latent_us", US, "time")] = 0.0
    gap_per_request_s: Annotated[float, Coefficient("gap_per_request_us", US, "time")] = 0.0
    asynchronous: bool | None = None  # whether it schedules a step ahead; None: as the flag says

    def launch_s(self, model: ModelShape) -> float:
        """Return what launching a mean layer takes."""
        if model.latent:
            return self.launch_latent_s
        return self.launch_experts_s if model.experts else self.launch_dense_s

    def scaled(self, factor: float) -> ServerHost:
        """Return the host of another machine class: its front end and launches take so many times as long."""
        return msgspec.structs.replace(self, **{name: factor * getattr(self, name) for name in SCALED})


# The device whose machines have factor 1.
REFERENCE = "h200"
# What depends on the machine's class.
SCALED = (
    *("request_in_s", "request_serial_s", "out_s"),
    *("launch_dense_s", "launch_experts_s", "launch_latent_s"),
)


class Steps(NamedTuple):
    """A server's scheduling: synchronous, asynchronous, or asynchronous with decoding in piecewise graphs."""

    asynchronous: bool
    piecewise: bool = False


class _Hosts(msgspec.Struct, frozen=True):
    """The packaged file's values, in microseconds but for factors by device."""

    source: str
    asynchronous_since: str
    front_end: dict[str, float]
    launch: dict[str, float]
    steps: dict[str, dict[str, float]]
    factor: dict[str, float]


@cache
def _hosts() -> _Hosts:
    return msgspec.convert(packaged("server_hosts.toml"), _Hosts)


def steps_of(version: str) -> Steps:
    """Return what a release of vLLM does by default."""
    return Steps(_numbers(version) >= _numbers(_hosts().asynchronous_since))


def server_host(version: str, device: str, steps: Steps | None = None) -> ServerHost:
    """Return the host of a server of this release on this device, scaled by its machine class."""
    hosts, steps = _hosts(), steps or steps_of(version)
    kind = "piecewise" if steps.piecewise else "asynchronous" if steps.asynchronous else "synchronous"
    factor = hosts.factor.get(device, 1.0)
    known = "" if device in hosts.factor else f"; {device}'s machines are assumed to be as H200's"
    values = {**hosts.front_end, **hosts.launch, **hosts.steps.get(kind, {})}
    source = f"{hosts.source}; {kind} steps; machine factor {factor:g}{known}"
    host = host_of({"per_step_us": 0.0, "per_request_us": 0.0, **values}, Origin("fitted", source))
    return msgspec.structs.replace(host.scaled(factor), asynchronous=steps.asynchronous)


def host_of(row: Table, origin: Origin) -> ServerHost:
    """Return the host of a table in microseconds."""
    return ServerHost(origin=origin, **{f"{name.removesuffix('_us')}_s": US * row[name] for name in row})


def _numbers(version: str) -> tuple[int, ...]:
    parts = version.split(".")
    return tuple(int(each) for each in parts) if all(map(str.isdecimal, parts)) else (1 << 30,)
