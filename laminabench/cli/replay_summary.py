"""What a replay prints: the headline first, then where the time went."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from laminabench.cli.output import literal
from laminabench.cli.replay_faults import disturbances, fault_table
from laminabench.cli.replay_memory import memory_lines
from laminabench.cli.replay_numbers import number, share
from laminabench.cli.replay_parts import in_time, outcomes, points, price, throughput
from laminabench.cli.replay_seen import seen_lines
from laminabench.runs.partial import partial_sentence

if TYPE_CHECKING:
    from rich.console import Console

SOURCES = {"file": "the real trace", "profile": "generated from its profile"}
PARTS = ("model", "attention", "network", "host", "waiting")


def render(console: Console, result: dict[str, Any]) -> None:
    """A dozen lines on one screen."""
    if partial := partial_sentence(result):
        console.print(f"[bold red]{literal(partial)}[/bold red]", soft_wrap=True)
    trace = result["trace"]
    boards = (literal(said) for said in on_boards(result["deployment"], result["facts"]))
    console.print(
        f"[bold]{literal(trace['name'])}[/bold], {SOURCES[trace['source']]}, {trace['requests']:,} requests",
        f"on [bold]{result['system']}[/bold] {result['deployment']} with {literal(result['model'])}",
        f"({', '.join((result['mode'], *boards, _how(result)))})",
        soft_wrap=True,
    )
    lines = seen_lines(result) if "attempts" in result else _lines(result)
    for label, line in lines:
        console.print(f"{label:15}{line}", soft_wrap=True)
    if result.get("faults"):
        console.print(fault_table(result["faults"]))
    kept = f"; kept in {literal(result['run_dir'])}" if result["run_dir"] else ""
    if result["backend"] == "live":
        times = f"replayed in {result['duration_s']:,.1f} s, {result['wall_s']:,.1f} s in all"
    else:
        times = f"simulated in {result['simulation_s'] * 1000:.1f} ms, {result['wall_s']:.2f} s in all"
    console.print(f"[dim]{times}{kept}[/dim]", soft_wrap=True)


def _how(result: dict[str, Any]) -> str:
    if result["backend"] == "live":
        return "[bold]live, measured[/bold]"
    return f"[bold]modelled[/bold], costs {literal(result['costs_set'])}"


def on_boards(deployment: str, facts: dict[str, Any]) -> Iterator[str]:
    """Who maps, and what the boards are where the deployment does not say it."""
    if "mapping" in facts:
        yield f"mapping {facts['mapping']}"
        if not deployment.endswith(f"x{facts['board']}"):
            yield f"board {facts['board']}"


def _lines(result: dict[str, Any]) -> Iterator[tuple[str, str]]:
    facts, kv = result["facts"], result["kv"]
    yield "throughput", throughput(result)
    batches = f" in {facts['batches']} batches" if facts.get("batches", 1) > 1 else ""
    filled = f"KV cache up to {share(kv['peak_share'])} of {kv['capacity_tokens']:,} tokens"
    yield "mean batch", f"[bold]{number(result['mean_batch'])}[/bold] requests{batches}; {filled}"
    yield "TBT in ms", points(result["tbt_ms"])
    yield f"within {result['slo']['tbt_ms']:g} ms", in_time(result["slo"])
    yield "cost", price(result["cost"])
    yield "energy", _energy(result["energy"])
    yield "a token's time", ", ".join(f"{part} {share(result['time_shares'][part])}" for part in PARTS)
    idle = {name: value for name, value in result["bubbles"].items() if not isinstance(value, dict)}
    yield "idle (bubbles)", ", ".join(f"{name} {share(value)}" for name, value in idle.items())
    if "memory" in result:
        yield from memory_lines(result["memory"])
    counts = result["requests"]
    preempted = f"; {result['preemptions']:,} preemptions" if result["preemptions"] else ""
    waited = f"queueing p50 {number(result['queueing_s']['p50'])} s"
    if "schedule" in result:
        yield "schedule", _schedule(result["schedule"])
    if "faults" in result:
        yield from disturbances(result)
    yield "requests", f"{outcomes(counts)}{preempted}; {waited}"


def _energy(energy: dict[str, Any]) -> str:
    if energy["rated_w"] is None:
        return "-, for want of a power rating"
    each = number(energy["joules_per_token"])
    return f"at most {each} J a token, all devices at their rated {energy['rated_w']:,.0f} W throughout"


def _schedule(schedule: dict[str, Any]) -> str:
    idle = ", ".join(f"{literal(name)} {share(busy)}" for name, busy in schedule["bubbles"].items())
    pieces = f"{schedule['pieces']:,} pieces of work"
    # Of each worker, from the first to the last piece; the line above is of pools, in the window.
    each = f"idle, each worker, from first to last piece: {idle}"
    if schedule["violations"]:
        return f"[bold]left[/bold] {len(schedule['violations'])} times in {pieces}; {each}"
    return f"as defined: {pieces} in order, no overlap; {each}"
