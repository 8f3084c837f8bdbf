"""The summary that a replay prints, headline first, and the same as one JSON object."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, cast

from msgspec import UNSET, Struct

from laminabench.render.format import gigabytes, milliseconds, number, share, with_unit
from laminabench.render.model import Row, Sheet
from laminabench.render.terminal import literal, print_sheet
from laminabench.runs.manifest import NUMBERS
from laminabench.runs.summary import (
    Attempts,
    ClientSummary,
    Cost,
    Counted,
    Energy,
    EngineSummary,
    FaultCost,
    FaultsInAll,
    Memory,
    PerInstance,
    Requests,
    Schedule,
    Summary,
    TokensPerChunk,
    number_at,
)
from laminabench.traces.table import TraceMeta
from laminabench.util.json import Json, JsonObject, to_json
from laminabench.workflows.replay.run import Result, head

if TYPE_CHECKING:
    from rich.console import Console

SOURCES = {"file": "the real trace", "profile": "generated from its profile"}
PARTS = ("model", "attention", "network", "host", "waiting")
MEMORY_PARTS = {"kv": "KV", "qkv": "QKV weights", "fc": "FC weights"}
WINDOWS = {
    "queue_never_empty": "in which the queue was never empty",
    "concurrency_held": "at full concurrency",
    "arrivals": "from first to last arrival",
    "whole_run": "in all",
}
# Failure reasons and faults that fit on a screen; --json has all.
MOST_ERRORS, MOST_FAULTS = 4, 12
Line = tuple[str, str]


def source_of(meta: TraceMeta) -> str:
    """Return where requests are from: only traces of the catalogue are known to be what they are called."""
    return "from a file" if meta.source == "file" and not meta.citation else SOURCES[meta.source]


def describe(result: Result, wall_s: float, **drawn: Json) -> dict[str, Json]:
    """Return the documented keys of `--json`."""
    replayed, meta = result.replayed, result.trace.meta
    modelled = {
        "costs_set": replayed.costs_set,
        "includes": replayed.includes and replayed.includes.describe(),
        "simulation_s": replayed.simulation_s,
    }
    trace = {name: getattr(meta, name) for name in ("name", "source", "sha256")}
    return {
        **head(result.prepared),
        "trace": {**trace, "requests": len(result.trace)},
        **to_json(replayed.summary),
        "facts": replayed.facts,
        **({} if result.prepared.backend == "live" else modelled),
        "partial": None if replayed.partial is None else to_json(replayed.partial),
        "run_dir": None if result.directory is None else str(result.directory),
        **drawn,
        "wall_s": wall_s,
    }


def render(console: Console, result: Result, wall_s: float) -> None:
    """Print a summary that fits on one screen."""
    prepared, replayed, meta = result.prepared, result.replayed, result.trace.meta
    summary, backend = replayed.summary, prepared.backend
    if replayed.partial:
        console.print(f"[bold red]{literal(replayed.partial.sentence)}[/bold red]", soft_wrap=True)
    boards = (literal(text) for text in on_boards(str(prepared.deployment), replayed.facts))
    costs = f"[bold]{NUMBERS[backend]}[/bold], costs {literal(replayed.costs_set or '')}"
    how = "[bold]live, measured[/bold]" if backend == "live" else costs
    console.print(
        f"[bold]{literal(meta.name)}[/bold], {source_of(meta)}, {len(result.trace):,} requests",
        f"on [bold]{prepared.request.system}[/bold] {prepared.deployment}",
        f"with {literal(prepared.model.name)} ({', '.join((prepared.request.mode, *boards, how))})",
        soft_wrap=True,
    )
    for label, line in lines(summary, replayed.facts):
        console.print(f"{label:15}{line}", soft_wrap=True)
    if summary.fault_costs:
        print_sheet(console, fault_sheet("", summary.fault_costs, MOST_FAULTS))
    saved = f"; saved in {literal(result.directory)}" if result.directory else ""
    if backend != "modelled":
        times = f"replayed in {summary.duration_s:,.1f} s, {wall_s:,.1f} s in all"
    else:
        times = f"simulated in {(replayed.simulation_s or 0) * 1000:.1f} ms, {wall_s:.2f} s in all"
    if replayed.includes:
        console.print(literal(replayed.includes), soft_wrap=True)
    console.print(f"[dim]{times}{saved}[/dim]", soft_wrap=True)


def on_boards(deployment: str, facts: JsonObject) -> Iterator[str]:
    """Yield the mapping, and the boards where the deployment does not name them."""
    if "mapping" in facts:
        yield f"mapping {facts['mapping']}"
        if not deployment.endswith(f"x{facts['board']}"):
            yield f"board {facts['board']}"


def lines(summary: Summary, facts: JsonObject) -> Iterator[Line]:
    """Yield a replay's results, each as a label and a line; `facts` describe its deployment."""
    if isinstance(summary, ClientSummary):
        return _client_lines(summary)
    assert isinstance(summary, EngineSummary)
    return _engine_lines(summary, facts)


def _engine_lines(summary: EngineSummary, facts: JsonObject) -> Iterator[Line]:
    """Yield results that need the engine's scheduler."""
    kv = summary.kv
    yield "throughput", _throughput(summary)
    # With several instances it is the number of each one.
    count = 1 if summary.instances else facts.get("batches", 1)
    batches = f" in {count} batches" if isinstance(count, int) and count > 1 else ""
    filled = f"KV cache up to {share(kv.peak_share)} of {kv.capacity_tokens or 0:,} tokens"
    yield "mean batch", f"[bold]{number(summary.mean_batch)}[/bold] requests{batches}; {filled}"
    if summary.ttft_ms:
        yield "TTFT in ms", f"{_points(summary.ttft_ms)}: from arrival, waiting included"
    yield "TBT in ms", _points(summary.tbt_ms)
    yield from _in_time(summary)
    if summary.e2e_ms:
        yield "end to end, ms", _points(summary.e2e_ms)
    yield "cost", _price(summary.cost)
    yield "energy", _energy(summary.energy)
    shares = summary.time_shares
    yield "a token's time", ", ".join(f"{part} {share(getattr(shares, part))}" for part in PARTS)
    idle = summary.bubbles.pools()
    yield "idle (bubbles)", ", ".join(f"{name} {share(value)}" for name, value in idle.items())
    if summary.memory:
        yield from _memory_lines(summary.memory)
    if summary.instances:
        yield "instances", _instances(summary.instances)
    if summary.prompt_pool:
        pool = summary.prompt_pool
        rate = f"{number(pool.prompt_tokens_per_s)} prompt tokens/s on {pool.engines} engines"
        yield "prompt pool", f"{rate}, busy {share(pool.busy_share)} of the time"
    if summary.schedule:
        yield "schedule", _schedule(summary.schedule)
    if pace := facts.get("pace"):
        yield "pace", _pace(cast("JsonObject", pace))
    if summary.faults is not UNSET:
        yield from _disturbances(summary)
    preempted = f"; {summary.preemptions:,} preemptions" if summary.preemptions else ""
    waited = f"queueing p50 {number(number_at(summary, 'queueing_s.p50'))} s"
    yield "requests", f"{_outcomes(summary.requests)}{preempted}; {waited}"


def _instances(instances: PerInstance) -> str:
    """Return how evenly the instances were used."""
    least, most, of = min(instances.requests), max(instances.requests), len(instances.requests)
    fullest = f"the fullest has {number(instances.imbalance)} x the mean batch of all {of}"
    return f"{least:,} to {most:,} requests each; {fullest}"


def _client_lines(summary: ClientSummary) -> Iterator[Line]:
    """Yield results that only a client can measure: chunks, its own lateness, attempts."""
    yield "requests", _outcomes(summary.requests)
    yield from _errors(summary.attempts)
    yield "throughput", _throughput(summary)
    at_once = f"[bold]{number(summary.mean_batch)}[/bold] requests streaming at once"
    yield (
        "mean batch",
        f"{at_once}, {number(number_at(summary, 'mean_waiting'))} waiting for their first chunk",
    )
    if summary.lateness_ms:
        yield "sent late by", f"{_points(summary.lateness_ms)} ms: this client's own doing"
    yield "TTFT in ms", f"{_points(summary.ttft_ms)}: sent to first chunk"
    if chunks := summary.tokens_per_chunk:
        yield "ITL in ms", f"{_points(summary.itl_ms)}: between chunks of {_chunk(chunks)}"
    yield "TBT in ms", f"{_points(summary.tbt_ms)}: between tokens"
    yield from _in_time(summary)
    yield "end to end, ms", _points(summary.e2e_ms)
    if summary.cost.usd_per_hour is not None:
        yield "cost", _price(summary.cost)
    yield "attempts", _attempts(summary.attempts)
    if summary.counted and (different := _different(summary.counted)):
        yield "lengths", different


def _throughput(summary: Summary) -> str:
    """Return throughput in the steady window and over the whole replay."""
    window = summary.window
    length = f"{window.end_s - window.start_s:,.1f} s {WINDOWS[window.kind]}"
    overall = number(number_at(summary, "whole_run.throughput_tokens_per_s"))
    rate = f"[bold]{number(summary.throughput_tokens_per_s)} tokens/s[/bold]"
    return f"{rate} over {length}; whole run {overall} over {summary.duration_s:,.1f} s"


def _points(distribution: object) -> str:
    """Return mean, percentiles and maximum."""
    points = to_json(distribution) if isinstance(distribution, Struct) else {}
    return ", ".join(f"{name} {number(cast('float | None', value))}" for name, value in points.items())


def _in_time(summary: Summary) -> Iterator[Line]:
    """Return the share within the TBT limit, and within both limits if there is one for TTFT."""
    slo = summary.slo
    tokens, requests = share(slo.token_attainment), share(slo.request_attainment)
    goodput = f"goodput {number(slo.goodput_tokens_per_s)} tokens/s"
    yield f"within {slo.tbt_ms:g} ms", f"{tokens} of tokens, {requests} of requests throughout; {goodput}"
    if slo.ttft_ms is not UNSET:
        first, both = (share(number_at(slo, key)) for key in ("ttft_attainment", "joint_attainment"))
        rate = number(number_at(slo, "goodput_requests_per_s"))
        line = f"{first} of first tokens within {slo.ttft_ms:,g} ms"
        yield "both limits", f"{line}; {both} of requests keep both throughout, {rate} requests/s"


def _price(cost: Cost) -> str:
    """Return the cost of tokens."""
    if cost.usd_per_hour is None:
        return "-, for want of a price; --price DEVICE=USD_PER_HOUR gives one"
    return (
        f"${cost.usd_per_hour:.2f} an hour, ${number(cost.usd_per_million_tokens)} a million tokens, "
        f"{number(cost.tokens_per_usd)} tokens a dollar"
    )


def _energy(energy: Energy) -> str:
    if energy.rated_w is None:
        return "-, for want of a power rating"
    each = number(energy.joules_per_token)
    return f"at most {each} J a token, all devices at their rated {energy.rated_w:,.0f} W throughout"


def _outcomes(counts: Requests) -> str:
    """Return how requests ended; outcomes without requests are left out."""
    words = {
        "rejected because they could never fit": counts.rejected,
        "unfinished": counts.unfinished,
        "[bold]failed[/bold]": counts.failed,
    }
    others = (f", {count:,} {phrase}" for phrase, count in words.items() if count)
    return f"{counts.completed:,} completed{''.join(others)}"


def _schedule(schedule: Schedule) -> str:
    idle = ", ".join(f"{literal(name)} {share(busy)}" for name, busy in schedule.bubbles.items())
    pieces = f"{schedule.pieces:,} pieces of work"
    # Per worker, from its first to its last piece; the line above is per pool, in the window.
    each = f"idle, each worker, from first to last piece: {idle}"
    if schedule.violations:
        return f"[bold]left[/bold] {len(schedule.violations)} times in {pieces}; {each}"
    return f"as defined: {pieces} in order, no overlap; {each}"


def _pace(pace: JsonObject) -> str:
    """Return whether the host was as fast as the devices that it emulates."""
    slowdown, late = cast("float", pace["slowdown"]), cast("float | None", pace["late_share"])
    warning = ": [bold]these times are the host's[/bold]" if pace["kept"] is False else ""
    stretched = f"times stretched by {number(slowdown)}; " if slowdown > 1 else ""
    points = cast("dict[str, float]", pace["lateness_ms"] or {})
    after = ", ".join(f"{name} {number(value)} ms" for name, value in points.items()) or "-"
    late_in = f"the host was late in {share(late)} of the iterations{warning}"
    return f"{stretched}{late_in}; it went on {after} after their ends"


def _memory_lines(memory: Memory) -> Iterator[Line]:
    """Yield lines on a board's contents, busy times and traffic."""
    contents = ", ".join(
        f"{gigabytes(getattr(memory.hbm_bytes, part).mean)} {name}" for part, name in MEMORY_PARTS.items()
    )
    yield (
        "memory",
        f"HBM {share(memory.hbm_share.mean)} in use, {share(memory.hbm_share.max)} at most: {contents}; "
        f"LPDDR {gigabytes(memory.lpddr_bytes.mean)}; {gigabytes(memory.wasted_bytes.mean)} empty in pages",
    )
    busy = f"HBM side {share(memory.hbm_busy_share)}, LPDDR side {share(memory.lpddr_busy_share)}"
    yield "busy", f"{busy} of the iterations' time"
    moved = memory.moved_bytes
    changes = f"{memory.mapping_changes:,} {'change' if memory.mapping_changes == 1 else 'changes'}"
    yield (
        "moved",
        f"{gigabytes(moved.total)} in {changes} of mapping, "
        f"{gigabytes(moved.per_iteration)} an iteration, {gigabytes(moved.max)} at most; "
        f"{gigabytes(memory.compacted_bytes.total)} of KV copied together; that takes "
        f"{share(memory.moving_share)} of the time, {share(memory.hideable_share)} of that "
        "could pass while LPDDR is idle",
    )


def _disturbances(summary: EngineSummary) -> Iterator[Line]:
    """Yield the faults and interruptions that a live replay recovered from."""
    total, resumed = summary.faults_in_all, summary.resumed
    if total and (total.faults or total.strikes_planned):
        yield "faults", _in_all(total)
    if resumed and resumed.times:
        often = "once" if resumed.times == 1 else f"{resumed.times} times"
        moments = ", ".join(f"{at_s:,.1f}" for at_s in resumed.at_s)
        yield "resumed", f"{often}, at {moments} s; the time in between is left out"
    if summary.tokens_sha256:
        yield "tokens' sha256", summary.tokens_sha256


def _in_all(total: FaultsInAll) -> str:
    strikes = f" ({total.strikes} of {total.strikes_planned} blows)" if total.strikes_planned else ""
    return (
        f"{total.faults} recovered from{strikes}; at worst noticed after "
        f"{milliseconds(total.detection_s)}, iterations again {milliseconds(total.recovery_s)} later, "
        f"TBT {number(total.tbt_worst_ms)} ms; goodput lost {number(total.goodput_lost_tokens)} tokens"
    )


def fault_sheet(title: str, faults: Sequence[FaultCost], most: int) -> Sheet:
    """Return a row for each of the first faults."""
    times = (">at s", ">noticed", ">recovered", ">normal", ">TBT before", ">worst", ">goodput lost")
    rows: list[Row] = []
    for fault in faults[:most]:
        how = ", ".join(dict.fromkeys(struck.how for struck in fault.struck))
        rows.append(
            (
                (", ".join(fault.workers) or "connections") + (f" ({how})" if how else ""),
                f"{fault.began_s:,.2f}",
                milliseconds(fault.detection_s),
                milliseconds(fault.recovery_s),
                milliseconds(fault.normal_again_s),
                with_unit(fault.tbt_before_ms, "ms"),
                with_unit(fault.tbt_worst_ms, "ms"),
                with_unit(fault.goodput_lost_tokens, "tokens"),
            )
        )
    if len(faults) > most:
        rows.append((f"and {len(faults) - most} more", *[""] * len(times)))
    return Sheet(title, ("fault", *times), rows)


def _chunk(chunks: TokensPerChunk) -> str:
    sizes = "1 token" if chunks.max == 1 else f"{number(chunks.mean)} tokens, {number(chunks.max)} at most"
    evenly = f", {share(chunks.even_share)} of them [bold]split evenly[/bold]" if chunks.even_share else ""
    return f"{sizes}{evenly}"


def _attempts(attempts: Attempts) -> str:
    answers = ", ".join(f"{times:,} with {status}" for status, times in attempts.by_status.items())
    again = f"{attempts.retried:,} of them again" if attempts.retried else "none twice"
    return f"{attempts.sent:,} sent, {again}; {f'answered: {answers}' if answers else 'no answer'}"


def _errors(attempts: Attempts) -> Iterator[Line]:
    """Yield the reasons of failed requests, the most frequent first."""
    errors = list(attempts.by_error.items())
    for why, times in errors[:MOST_ERRORS]:
        yield "failed", f"{times:,}: {literal(why)}"
    if len(errors) > MOST_ERRORS:
        yield "failed", f"for {len(errors) - MOST_ERRORS} other reasons, see --json"


def _different(counted: Counted) -> str | None:
    """Return how requests differed from the trace, which makes the numbers another trace's."""
    texts = []
    if counted.other_length:
        texts.append(f"{counted.other_length:,} requests got another number of tokens than requested")
    if counted.prompt_tokens.other:
        texts.append(f"{counted.prompt_tokens.other:,} prompts had another length by the server's count")
    return "; ".join(texts) or None
