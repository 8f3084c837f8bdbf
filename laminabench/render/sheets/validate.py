"""What was modelled beside what was measured, for a terminal."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from laminabench.render.format import number, share
from laminabench.render.terminal import literal, table
from laminabench.workflows.validate.emulated import METRICS as METRICS_OF_AGREEMENTS
from laminabench.workflows.validate.emulated import TARGETS as AGREEMENT_TARGETS
from laminabench.workflows.validate.emulated import Agreement
from laminabench.workflows.validate.gate import Moved
from laminabench.workflows.validate.published import MEAN_TARGET, TARGET, Row, mean_error, missed
from laminabench.workflows.validate.recorded import AS_MEASURED, POINTS, TARGETS, TPOT_POINTS, Judged
from laminabench.workflows.validate.serving import SOUND, Group
from laminabench.workflows.validate.twin import METRICS as METRICS_OF_TWINS
from laminabench.workflows.validate.twin import TARGETS as TWIN_TARGETS
from laminabench.workflows.validate.twin import Twin, same_order

if TYPE_CHECKING:
    from rich.console import Console

NAMES = {"ttft": "TTFT", "tpot": "TPOT", "latency": "latency"}


def render_recorded(console: Console, found: Sequence[Judged]) -> None:
    """A line a prediction: errors of means, of TPOT's percentiles, and of a request's latency on average."""
    titles = ("recorded", ">TTFT", ">latency", ">TPOT", *(f">{p}" for p in POINTS), ">by request", "")
    drawn = table(titles, title="predicted / measured - 1, in percent", title_justify="left")
    for each in found:
        errors = each.errors()
        tpot = {"mean": errors["tpot"]["mean"], **{p: errors["tpot"][p] for p in POINTS}}
        named = each.recording.name
        if each.constants != AS_MEASURED:
            named = f"  with {each.gap_s * 1000:.2f} ms a step, from {each.constants}"
        means = [errors["ttft"]["mean"], errors["latency"]["mean"], *tpot.values()]
        verdict = "[red]missed[/red]" if each.missed() else "[green]met[/green]"
        by_request = f"{errors['latency']['by_request']:.1f}"
        drawn.add_row(literal(named), *(f"{error:+.1f}" for error in means), by_request, verdict)
        for simulator, theirs in each.recording.others.items():
            if each.constants == AS_MEASURED:
                own = [theirs["ttft"][0], theirs["latency"][0], *theirs["tpot"]]
                drawn.add_row(f"[dim]  by {literal(simulator)}[/dim]", *(f"{error:+.1f}" for error in own))
    console.print(drawn)
    targets = ", ".join(f"{NAMES[name]} {limit:g}" for name, limit in TARGETS.items())
    console.print(f"[dim]targets: {targets}, TPOT's percentiles {TPOT_POINTS:g} %[/dim]")


def render_published(console: Console, found: Sequence[Row]) -> None:
    """A line a number."""
    titles = ("model", "deployment", "costs", ">printed ms", ">modelled ms", ">error %", "")
    rows = []
    for row in found:
        error, predicted = row.error, row.predicted_ms
        known = ("-", "-") if error is None or predicted is None else (f"{predicted:,.1f}", f"{error:+.1f}")
        verdict = row.why_not or ("[red]missed[/red]" if abs(error or 0) > TARGET else "[green]met[/green]")
        rows.append(
            (literal(row.model), row.deployment, row.costs, f"{row.measured_ms:,.1f}", *known, verdict)
        )
    console.print(table(titles, rows, title="published", title_justify="left"))
    said = "missed" if "mean" in missed(list(found)) else "met"
    mean = f"mean of absolute errors {mean_error(list(found)):.1f} %, target {MEAN_TARGET:g} %: {said}"
    console.print(f"[dim]{mean}[/dim]")


def render_serving(console: Console, found: Sequence[Group]) -> None:
    """A line a model and device, then all of these; why those that are known to be off are so, below."""
    titles = ("servers", "vLLM", ">loads", ">TPOT", ">mean", ">worst", ">TTFT", ">mean", ">target", "")
    drawn = table(
        titles,
        title="median of absolute errors, and predicted / measured - 1, in percent",
        title_justify="left",
    )
    reasons: list[str] = []
    for group in found:
        tpot, ttft = group.errors["tpot"], group.errors["ttft"]
        mark = ""
        if group.off:
            reasons += [group.off] * (group.off not in reasons)
            mark = f" ({reasons.index(group.off) + 1})"
        verdict = "[red]missed[/red]" if group.missed else "[green]met[/green]"
        drawn.add_row(
            f"{literal(group.device)} {literal(group.what)}{mark}",
            ", ".join(group.versions) if group.what not in ("all", SOUND) else "",
            str(tpot.points),
            f"{tpot.median:.1f}",
            *(f"{error:+.1f}" for error in (tpot.mean, tpot.worst)),
            f"{ttft.median:.1f}",
            f"{ttft.mean:+.1f}",
            "" if group.target is None else f"{group.target:g}",
            "" if group.target is None else verdict,
        )
    console.print(drawn)
    for number_of, reason in enumerate(reasons, 1):
        console.print(f"[dim]({number_of}) {literal(reason)}[/dim]", soft_wrap=True)


def render_twins(console: Console, found: Sequence[Twin]) -> None:
    """A line a twin: what was measured, with its interval, and how far off the modelled one is."""
    common, own = _told_apart([each.said for each in found])
    titles = ("twin", *(f">{name}" for name in METRICS_OF_TWINS), "")
    drawn = table(titles, title="measured here (modelled, error)", title_justify="left")
    for each, said in zip(found, own, strict=True):
        errors = each.errors()
        cells = [
            f"{number(each.measured[name].value)} ({number(each.predicted[name])}, {errors[name]:+.1f} %)"
            if name in errors
            else "-"
            for name in METRICS_OF_TWINS
        ]
        verdict = "[red]missed[/red]" if each.missed() else "[green]met[/green]"
        drawn.add_row(literal(said), *cells, verdict)
    console.print(drawn)
    if common:
        console.print(f"[dim]all: {literal(common)}[/dim]", soft_wrap=True)
    targets = ", ".join(f"{name} {limit:g}" for name, limit in TWIN_TARGETS.items())
    order = "the same" if same_order(found) else "[red]not the same[/red]"
    console.print(f"[dim]targets: {targets} %; order of the deployments: {order}[/dim]")


def _told_apart(said: Sequence[str]) -> tuple[str, list[str]]:
    """What all calls have in common, and what each has of its own."""
    words = [re.split(r"\s+(?=--)", each) for each in said]
    common = [word for word in words[0] if all(word in other for other in words)] if len(said) > 1 else []
    return " ".join(common), [" ".join(word for word in each if word not in common) for each in words]


def render_emulated(console: Console, found: Sequence[Agreement]) -> None:
    """A line a replay: what the engine came to on emulated devices, and how far that is from the model."""
    common, own = _told_apart([each.said for each in found])
    titles = (
        "replay",
        *(f">{name}" for name in METRICS_OF_AGREEMENTS),
        ">host ms",
        ">late",
        ">assumed host",
        "",
    )
    drawn = table(titles, title="emulated (modelled, emulated / modelled - 1)", title_justify="left")
    for each, said in zip(found, own, strict=True):
        off, late = each.differences(), each.pace["late_share"]
        cells = [
            f"{number(each.emulated[name])} ({number(each.modelled[name])}, {off[name]:+.1f} %)"
            if name in off
            else "-"
            for name in METRICS_OF_AGREEMENTS
        ]
        missed = each.missed()
        verdict = f"[red]missed: {', '.join(missed)}[/red]" if missed else "[green]met[/green]"
        assumed = number(each.assumed["tokens/s"])
        drawn.add_row(
            literal(said), *cells, number(each.host_ms), share(cast("float", late)), assumed, verdict
        )
    console.print(drawn)
    if common:
        console.print(f"[dim]all: {literal(common)}[/dim]", soft_wrap=True)
    targets = ", ".join(f"{name} {limit:g}" for name, limit in AGREEMENT_TARGETS.items())
    console.print(
        f"[dim]targets: {targets} %; modelled with the host that was emulated on, in ms an iteration; "
        "assumed host: tokens/s modelled with the cost set's[/dim]",
        soft_wrap=True,
    )


def render_moved(console: Console, found: Sequence[Moved]) -> None:
    """What is not as it was kept."""
    rows = [
        (
            literal(each.what),
            f"{each.was:+.2f}",
            "gone" if each.now is None else f"{each.now:+.2f}",
            "[red]worse[/red]" if each.worse else "",
        )
        for each in found
    ]
    console.print(table(("error in percent", ">kept", ">now", ""), rows))
