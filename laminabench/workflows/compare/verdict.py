"""The verdict on a comparison's cells, and the cells that other attention kernels change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from laminabench.analysis.verdict import Contender, Verdict, verdict
from laminabench.workflows.compare.cells import Cell
from laminabench.workflows.verdict import baseline, contender, limits, nearest_even


def contenders(cell: Cell) -> list[Contender]:
    """Return the systems of one cell as a verdict takes them."""
    return [
        contender(name, cell.deployments[name], cell.usd_per_hour[name], summary, cell.errors[name])
        for name, summary in cell.summaries.items()
    ]


def verdict_on(cell: Cell) -> Verdict:
    """Judge the systems of one cell."""
    within = limits(cell.slo_tbt_ms, cell.slo_ttft_ms)
    subject = f"{cell.trace} with {cell.model}" + (f" ({cell.load})" if cell.load else "")
    judged = verdict(contenders(cell), within, subject=subject, baseline=baseline(cell.summaries))
    if judged.cheapest is None or judged.runner_up is None:
        return judged
    sides = [(each.tokens_per_s, cell.devices[each.system]) for each in (judged.cheapest, judged.runner_up)]
    depends = judged.depends or cell.other.decide(judged) or str(nearest_even(*sides) or "")
    return replace(judged, depends=depends)


def kernel_flips(cells: Sequence[Cell], base: str) -> Iterator[str]:
    """Yield a sentence where vLLM's own kernels change the better system of several cells."""
    flipped = []
    for cell in cells:
        sides = {each.system: each for each in contenders(cell)}
        for name, side in sides.items():
            here, there = side.margin_over(sides[base]), cell.other.gain(side, sides[base])
            if name != base and (here > 0) != (there > 0):
                where = f"{cell.model} on {cell.trace}, {cell.label}"
                flipped.append(f"{where}: {name} {here:+.1%}, then {there:+.1%}")
    if flipped:
        flags = " ".join(sorted({each for cell in cells for each in cell.other.kernels}))
        yield (
            f"with vLLM's default kernel (--attention-kernel {flags}) the better of {base} and another "
            f"system changes in {len(flipped)} of {len(cells)} cells (tokens a dollar): {'; '.join(flipped)}"
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
