"""The verdict on a comparison's cells, and the cells that other attention kernels change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from laminabench.analysis.verdict import Contender, Verdict, verdict
from laminabench.workflows.compare.cells import Cell
from laminabench.workflows.verdict import baseline, contender, limits, nearest_even


def verdict_on(cell: Cell) -> Verdict:
    """Judge the systems of one cell."""
    contenders = [
        contender(name, cell.deployments[name], cell.usd_per_hour[name], summary, cell.errors[name])
        for name, summary in cell.summaries.items()
    ]
    within = limits(cell.slo_tbt_ms, cell.slo_ttft_ms)
    subject = f"{cell.trace} with {cell.model}" + (f" ({cell.load})" if cell.load else "")
    judged = verdict(contenders, within, subject=subject, baseline=baseline(cell.summaries))
    if judged.cheapest is None or judged.runner_up is None:
        return judged
    depends = judged.depends or _depends(cell, judged.cheapest, judged.runner_up)
    return replace(judged, depends=depends)


def _depends(cell: Cell, best: Contender, other: Contender) -> str:
    """Return the sentence on what decides most: a kernel that turns the answer, else a price."""
    here, there = _gains(cell, best.system, other.system)
    if (here > 0) != (there > 0):
        kernels = " and ".join(cell.other.kernels)
        cheaper = best.system if there > 0 else other.system
        return f"The kernels decide: with {kernels}, as vLLM takes without a flag, {cheaper} is cheaper."
    sides = [(each.tokens_per_s, cell.devices[each.system]) for each in (best, other)]
    return str(nearest_even(*sides) or "")


def _gains(cell: Cell, name: str, base: str) -> tuple[float, float]:
    """Return a gain in tokens a dollar, and the same with the kernels that vLLM takes without a flag."""
    here = cell.gain_per_dollar_of(name, base)
    rates, others = cell.throughput_tokens_per_s, cell.other.tokens_per_s
    changed = [others.get(each, rates[each]) / rates[each] for each in (name, base)]
    return here, (1 + here) * changed[0] / changed[1] - 1


def kernel_flips(cells: Sequence[Cell], base: str) -> Iterator[str]:
    """Yield a sentence where vLLM's own kernels change the better system."""
    flipped = [
        f"{cell.model} on {cell.trace}, {cell.label}: {name} {here:+.1%}, then {there:+.1%}"
        for cell in cells
        for name in cell.summaries
        if name != base
        for here, there in [_gains(cell, name, base)]
        if (here > 0) != (there > 0)
    ]
    if flipped:
        kernels = " and ".join(sorted({each for cell in cells for each in cell.other.kernels}))
        yield (
            f"with {kernels}, as vLLM takes without a flag, the better of {base} and another system changes "
            f"in {len(flipped)} of {len(cells)} cells (tokens a dollar): {'; '.join(flipped)}"
        )


def sentences_on(cells: Sequence[Cell]) -> tuple[str, ...]:
    """Return the answer: of one cell its verdict, of several how many each system wins."""
    sourced = [cell for cell in cells if not cell.same_host]
    verdicts = [verdict_on(cell) for cell in sourced]
    if len(verdicts) == 1:
        return verdicts[0].sentences
    if all(cell.load for cell in sourced):
        return tuple(sentence for each in verdicts for sentence in each.sentences)
    if len({(cell.model, cell.trace) for cell in sourced}) == 1:
        labelled = zip(sourced, verdicts, strict=True)
        return tuple(f"{cell.label}: {each.sentences[0]}" for cell, each in labelled)
    wins = Counter(each.cheapest.system for each in verdicts if each.cheapest)
    clear = Counter(each.cheapest.system for each in verdicts if each.cheapest and each.clear)
    each = (f"{name} in {count} ({clear[name]} clearly)" for name, count in wins.most_common())
    none = len(verdicts) - wins.total()
    without = f"; in {none} nothing is within the limit" if none else ""
    return (
        f"Of {len(verdicts)} cells the cheapest system within the limit is {', '.join(each)}{without}; the "
        "rest is too close to call for the model's error.",
    )
