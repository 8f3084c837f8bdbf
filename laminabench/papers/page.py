"""PAPER.md: every claim of the papers with our value, the deviation, and where ours is from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from laminabench.papers.claims import About, Claim
from laminabench.papers.entries import PAPERS
from laminabench.papers.paper import Written
from laminabench.util.atomic import replacing
from laminabench.util.markdown import row

_HEAD = """\
# The papers' claims, and what comes out here

Written by `laminabench figures`; do not edit. Nothing is tuned to a published value in silence: where ours
differs, the gap stays. *Modelled* is the virtual cluster with measured cost coefficients (`laminabench costs
show`); *computed* follows from data sheets, shapes or formulas alone; *measured* says on which machine. A
range is compared end by end. H2M2's board was never built: *modelled* there means the cycles and bytes of its
paper's hardware tables. What these leave open is assumed, or fitted to averages that the paper states, and is
listed under each figure: so agreement shows that the model is consistent, not that it is right. A claim
marked *fitted* is one that a parameter was chosen for.

*Bookkeeping* is what no model can get wrong: configs, lengths, prices, ratios of a paper's own numbers.
*Performance* is how fast, how efficient, or how much of a machine something takes. *Rests on* says what ours
is made of. Where ours is more than 25 % off, *tested* says what was varied to see whether the remark explains
it. *Entered* are values of the papers that this project only took over, which confirm nothing, as *fitted*
ones do not; where ours is `-` or both are words, nothing can be compared.
"""
_COLUMNS = (
    *("claim", "where", "published", "ours", "deviation", "rests on"),
    *("how ours was obtained", "remark"),
)
_KINDS: tuple[About, ...] = ("performance", "bookkeeping")
# Of the table of counts. Entered are a paper's own values, fitted those that a parameter was chosen for.
_COUNTED = (
    *("paper", "about", "claims", "hold or within 10 %", "do not", "cannot be compared", "entered", "fitted"),
)
_HOW = _COLUMNS.index("how ours was obtained")
# A cell with more characters is hard to read.
_LONG = 120


def write_page(target: Path, figures: Sequence[Written]) -> None:
    """Write the page of these figures, completely or not at all."""
    with replacing(target) as temporary:
        temporary.write_text("\n".join(_lines(figures)), encoding="utf-8")


def _lines(figures: Sequence[Written]) -> Iterator[str]:
    yield _HEAD
    yield from _summary(figures)
    for paper in PAPERS:
        some = [figure for figure in figures if figure.name in paper.figures]
        if not some:
            continue
        yield f"## {paper.name}: [{paper.title}]({paper.link})\n"
        for figure in some:
            yield from _section(figure)


def _summary(figures: Sequence[Written]) -> Iterator[str]:
    """Return how many claims come out, of performance and of bookkeeping; then the same by paper."""
    claims = [claim for figure in figures for claim in figure.claims]
    verdicts = (f"{kind.capitalize()}: {_verdict(_about(kind, claims))}." for kind in _KINDS)
    yield f"{len(figures)} figures and tables, {len(claims)} claims. {' '.join(verdicts)}\n"
    yield row(_COUNTED)
    yield row(["---"] * len(_COUNTED))
    papers = {
        paper.name: [claim for figure in figures if figure.name in paper.figures for claim in figure.claims]
        for paper in PAPERS
    }
    for name, own in (*papers.items(), ("all", claims)):
        for kind in _KINDS:
            some = _about(kind, own)
            if some:
                yield row([name, kind, *map(str, _counts(some))])
    yield ""


def _about(kind: About, claims: Sequence[Claim]) -> list[Claim]:
    return [claim for claim in claims if claim.about == kind]


def _counts(claims: Sequence[Claim]) -> tuple[int, ...]:
    """Return the counts in the order of the table's columns; the first is the sum of the others."""
    compared = [claim for claim in claims if claim.compared]
    holding = sum(bool(claim.holds) for claim in compared)
    entered, fitted = sum(claim.entered for claim in claims), sum(claim.fitted for claim in claims)
    rest = len(claims) - len(compared) - entered - fitted
    return len(claims), holding, len(compared) - holding, rest, entered, fitted


def _verdict(claims: Sequence[Claim]) -> str:
    count, holding, missing, *_ = _counts(claims)
    return (
        f"of {count} claims {holding + missing} can be compared, of which {holding} hold or come out within "
        f"10 % and {missing} do not"
    )


def _section(figure: Written) -> Iterator[str]:
    yield f"### {figure.name}: {figure.title}\n"
    yield f"![{figure.name}]({figure.name}.svg)\n"
    yield f"{figure.how} Data: [{figure.name}.csv]({figure.name}.csv).\n"
    if figure.claims:
        yield row(_COLUMNS)
        yield row(["---"] * len(_COLUMNS))
        yield from (row(_briefly(claim.row(), figure.how)) for claim in figure.claims)
        yield ""


def _briefly(cells: Sequence[str], caption: str) -> list[str]:
    """Return a row without the long list of parameters, which the caption has already."""
    listed = caption.split(". ", maxsplit=1)[0].removesuffix(".")
    how = cells[_HOW]
    if len(listed) > _LONG and how.lower().startswith(listed.lower()):
        how = f"{how.partition(':')[0]}, as under the picture{how[len(listed) :]}"
    return [*cells[:_HOW], how, *cells[_HOW + 1 :]]
