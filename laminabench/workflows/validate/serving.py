"""Measured servers at fixed numbers of concurrent requests, and predictions of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import replace as replace_fields

from laminabench.catalog.cost_file import load_costs
from laminabench.catalog.costs import known_devices
from laminabench.catalog.deployment import Workers, parse_workers
from laminabench.catalog.entries import packaged_in
from laminabench.catalog.find_model import modelled
from laminabench.catalog.hardware import Device, device
from laminabench.catalog.models import ModelShape
from laminabench.catalog.routers import TF32
from laminabench.catalog.server_host import ServerHost, Steps, server_host, steps_of
from laminabench.sim.spec import Float64
from laminabench.systems.modelled.setup import WORKING_BYTES
from laminabench.traces.table import Int32, Trace, TraceMeta, make_trace
from laminabench.util.errors import UserError
from laminabench.util.json import JsonObject
from laminabench.util.parallel import spread
from laminabench.workflows.validate.server import replayed

METRICS = ("tpot", "ttft")
ALL, SOUND = "all", "all but those known to be off"
# In percent, of the median of absolute errors of TPOT: by device, and model or all of its rows.
TARGETS: Mapping[tuple[str, str], float] = {
    ("h200", "gpt-oss-120b"): 7.0,
    ("h200", "kimi-k2.5"): 7.0,
    ("h200", ALL): 12.0,
}
# What a cost set or a layout may not have; anything else is a mistake.
NOT_MODELLED = (
    *("costs-no-coefficients", "model-does-not-fit", "model-cannot-split"),
    *("deployment-bad-layout", "replay-prompt-budget", "kv-tokens-too-many"),
)


class Pool(NamedTuple):
    """Workers for prompts, and those that decode, of a server that has both."""

    prompts: int
    layout: str  # of each for prompts, as a load's
    decode: int

    def devices(self, name: str, known: Mapping[str, Device]) -> Workers:
        """Return all devices for prompts."""
        one = parse_workers(_workers(self.layout, name), known)
        return Workers(one.device, self.prompts * one.count, one.shared())


@dataclass(frozen=True, slots=True)
class ServerLoad:
    """A server under a load, and the mean times that were measured of it."""

    server: Mapping[str, Any]  # model, device, version, precision, and how it was set up
    layout: str  # devices, and how they share the model where that is not tensor parallelism alone
    prompt_tokens: int
    output_tokens: int
    concurrency: int
    ttft_ms: float
    tpot_ms: float
    measured: str  # the day; `-` if unknown
    pool: Pool | None = None  # the layout is then that of each worker that decodes

    @property
    def model(self) -> str:
        return str(self.server["model"])

    @property
    def device(self) -> str:
        return str(self.server["device"])

    @property
    def deployment(self) -> str:
        return _workers(self.layout, self.tables)

    @property
    def tables(self) -> str:
        """The device whose kernels price it."""
        return str(self.server.get("tables", self.device))

    @property
    def served_on(self) -> str:
        """All its devices."""
        if self.pool is None:
            return self.deployment
        prompts = _workers(self.pool.layout, self.tables)
        return f"{self.pool.decode} of {self.deployment}, prompts on {self.pool.prompts} of {prompts}"

    @property
    def what(self) -> str:
        """The model, marked if prompts have workers of their own."""
        return f"{self.model}, P/D" if self.pool else self.model

    @property
    def host(self) -> ServerHost:
        """The server's host, by its version, how it was started and the device's machines."""
        version, server = str(self.server["version"]), self.server
        usual = steps_of(version).asynchronous
        steps = Steps(not server.get("sync", not usual), server.get("piecewise", False))
        return replace_fields(server_host(version, self.device, steps), **server.get("host", {}))

    @property
    def fit(self) -> bool:
        """Whether constants were fitted to it, so that it judges nothing."""
        return self.prompt_tokens in self.server.get("fit", ())

    @property
    def off(self) -> str:
        """Why no prediction can be expected to hold, where that is known."""
        return str(self.server.get("off", ""))

    def shape(self) -> ModelShape:
        """Return the model in the formats that it was served in."""
        server, shape = self.server, modelled(self.model)
        types = {name: server[name] for name in ("dtype", "kv_dtype") if name in server}
        since = server.get("tf32_since")
        if shape.router_dtype and since and self.measured >= since:
            types["router_dtype"] = TF32
        if "experts" in server and shape.experts:
            types["experts"] = replace(shape.experts, dtype=server["experts"])
        return replace(shape, **types)

    @property
    def memory_share(self) -> float:
        """The share of a device's memory by its data sheet that has the server's weights and KV.

        With what a setup takes off for other uses.
        """
        table = _table()
        sheet = device(self.tables).memory_bytes
        working = 1e9 * table["working"]["experts" if modelled(self.model).experts else "dense"]
        usable = self.server["memory_utilization"] * 1e9 * table["memory"][self.device] - working
        return float((usable + WORKING_BYTES) / sheet)

    def describe(self) -> JsonObject:
        """Return a JSON description of the server and of its requests."""
        return {
            **{name: self.server[name] for name in ("model", "device", "version", "precision")},
            "deployment": self.served_on,
            "prompt_tokens": self.prompt_tokens,
            "output_tokens": self.output_tokens,
            "concurrency": self.concurrency,
        }

    def trace(self) -> Trace:
        """Return the requests: some rounds, with the lengths that the benchmark drew."""
        count, random = self.server["rounds"] * self.concurrency, np.random.RandomState(0)

        def lengths(longest: int, least: int) -> Int32:
            shortest = max(least, int(self.server["shortest"] * longest))
            drawn: Int32 = random.randint(shortest, longest + 1, count).astype(np.int32)
            return drawn

        # A prompt has a token, and an answer of one token has no time between tokens.
        tokens = lengths(self.prompt_tokens, 1), lengths(self.output_tokens, 2)
        return make_trace(np.zeros(count), *tokens, TraceMeta(f"{self.concurrency} at once"))


@dataclass(frozen=True, slots=True)
class Judged:
    """A prediction and its measurement; without a prediction it says why."""

    point: ServerLoad
    ttft_ms: float | None
    tpot_ms: float | None
    why_not: str = ""
    queued: bool = False  # requests were preempted, as KV did not suffice

    def error(self, metric: str) -> float | None:
        """Return the metric's error in percent."""
        value: float | None = getattr(self, f"{metric}_ms")
        return None if value is None else 100 * (value / getattr(self.point, f"{metric}_ms") - 1)

    def describe(self) -> JsonObject:
        """Return a JSON description."""
        point = self.point
        return {
            **point.describe(),
            "measured": point.measured,
            **{f"{name}_ms": [getattr(point, f"{name}_ms"), getattr(self, f"{name}_ms")] for name in METRICS},
            "errors_percent": {name: self.error(name) for name in METRICS},
            "why_not": self.why_not,
            "known_off": point.off,
            "fit": point.fit,
            "queued": self.queued,
        }


class Errors(NamedTuple):
    """Errors of some points, in percent."""

    points: int
    median: float  # of absolute ones
    mean: float
    worst: float
    signed: float  # median
    p90: float  # of absolute ones

    @classmethod
    def of(cls, points: Sequence[Judged], metric: str) -> Errors:
        errors = np.array([each.error(metric) for each in points if each.tpot_ms is not None], np.float64)
        if not len(errors):
            return cls(0, *[float("nan")] * 5)
        size = np.abs(errors)
        worst, signed, p90 = errors[size.argmax()], np.median(errors), np.quantile(size, 0.9)
        return cls(len(errors), *map(float, (np.median(size), errors.mean(), worst, signed, p90)))


class Group(NamedTuple):
    """Points that are judged together."""

    device: str
    what: str  # the model, or all of them
    versions: tuple[str, ...]
    off: str  # why they are known to be off
    errors: Mapping[str, Errors]  # by metric

    @property
    def target(self) -> float | None:
        return None if self.off else TARGETS.get((self.device, self.what))

    @property
    def missed(self) -> bool:
        return self.target is not None and not self.errors["tpot"].median <= self.target

    def describe(self) -> JsonObject:
        """Return a JSON description."""
        return {
            **self._asdict(),
            "errors": {name: errors._asdict() for name, errors in self.errors.items()},
            "target": self.target,
            "missed": self.missed,
        }


def _workers(layout: str, name: str) -> str:
    count, _, shared = layout.partition(":")
    return f"{count}x{name}{shared and f':{shared}'}"


@cache
def _table() -> Mapping[str, Any]:
    return packaged_in(__package__, "serving.toml")


@cache
def servers() -> tuple[Mapping[str, Any], ...]:
    """Return all servers, with what they have in common; `rows` are a text."""
    table = _table()
    common = {key: value for key, value in table.items() if not isinstance(value, dict | list)}
    return tuple({**common, **server} for server in table["server"])


@cache
def points() -> tuple[ServerLoad, ...]:
    """Return all measured points."""
    loads = []
    for server in servers():
        about = {**server}
        for row in about.pop("rows").strip().splitlines():
            layout, prompt, output, at_once, ttft, tpot, day = row.split()
            lengths = int(prompt), int(output), int(at_once)
            loads.append(ServerLoad(about, layout, *lengths, float(ttft), float(tpot), day))
    return tuple(loads)


def judged(
    chosen: Sequence[ServerLoad],
    costs: str | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Judged]:
    """Predict each with the cost set of its kernels, or another; on all cores."""
    results: dict[int, Judged] = {}
    for index, each in spread(predicted, chosen, costs):
        results[index] = each
        progress(len(results), len(chosen))
    return [results[index] for index in range(len(chosen))]


def predicted(costs: str | None, point: ServerLoad) -> Judged:
    """Return the means over all of a load's requests, from its first burst to its last request."""
    try:
        times = request_times(costs, point)
    except UserError as error:
        if error.code not in NOT_MODELLED:
            raise
        return Judged(point, None, None, str(error))
    if not np.isfinite(times.latency_s).all():
        return Judged(point, None, None, "a request needs more KV than there is room for")
    ttft, tpot = (1000 * float(each.mean()) for each in (times.ttft_s, times.tpot_s))
    return Judged(point, ttft, tpot, queued=times.preempted)


class RequestTimes(NamedTuple):
    """Predicted times of all of a load's requests."""

    ttft_s: Float64
    tpot_s: Float64
    latency_s: Float64
    preempted: bool  # any of them


def request_times(costs: str | None, point: ServerLoad) -> RequestTimes:
    """Replay a load; raise a UserError for what is not modelled."""
    server, trace = point.server, point.trace()
    batched = server.get("batched_prompts", 0) * point.prompt_tokens or server["max_batched_tokens"]
    about = {
        "deployment": point.deployment,
        "host_async": True,
        "graph_rows": server.get("graphs"),
        "prefix_caching": False,
        "max_num_seqs": point.concurrency,
        "max_batched_tokens": batched,
        "memory_utilization": point.memory_share,
    }
    used = load_costs(costs or server["costs"])
    if pool := point.pool:
        about["prefill"] = pool.devices(point.tables, known_devices([used]))
        about["decode_workers"] = pool.decode
    times = replayed(about, trace, used, concurrency=point.concurrency, model=point.shape(), host=point.host)
    ttft = times["first_token_s"] - times["arrival_s"]
    tpot = (times["finished_s"] - times["first_token_s"]) / (trace.output_tokens - 1)
    latency = times["finished_s"] - times["arrival_s"]
    return RequestTimes(ttft, tpot, latency, bool(times["preemptions"].any()))


def grouped(predictions: Sequence[Judged]) -> list[Group]:
    """Group errors by device: each model, all, all with those known to be off, and the latter alone."""
    return [
        group
        for device in dict.fromkeys(each.point.device for each in predictions)
        for group in _of(device, predictions)
    ]


def _of(device: str, predictions: Sequence[Judged]) -> Iterator[Group]:
    here = [each for each in predictions if each.point.device == device]
    sound = [each for each in here if not each.point.off]
    for what in dict.fromkeys(each.point.what for each in sound):
        yield _group(device, what, [each for each in sound if each.point.what == what])
    if len(sound) < len(here):
        yield _group(device, SOUND, sound)
    yield _group(device, ALL, here)
    for what, off in dict.fromkeys((each.point.what, each.point.off) for each in here if each.point.off):
        those = [each for each in here if (each.point.what, each.point.off) == (what, off)]
        yield _group(device, what, those, off)


def _group(device: str, what: str, predictions: Sequence[Judged], off: str = "") -> Group:
    versions = tuple(sorted({str(each.point.server["version"]) for each in predictions}))
    return Group(device, what, versions, off, {metric: Errors.of(predictions, metric) for metric in METRICS})
