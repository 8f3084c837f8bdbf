"""How a verdict reads: the cells of its table, for the terminal, JUnit and Markdown alike."""

from __future__ import annotations

from collections.abc import Sequence

from laminabench.regress.verdict import Change, Verdict

COLUMNS = ("case", "metric", "golden", "now", "change", "")


def cells(verdict: Verdict, change: Change) -> tuple[str, str, str, str, str, str]:
    """One row of what moved; in full where numbers differ by less than is usually shown."""
    was, is_ = _number(change.golden), _number(change.now)
    if was == is_ and change.golden != change.now:
        was, is_ = repr(change.golden), repr(change.now)
    return verdict.case, change.metric, was, is_, _percent(change), change.direction


def lines(verdict: Verdict) -> list[str]:
    """All that is to be said of a case that did not pass, as plain text."""
    rows = [" ".join(filter(None, cells(verdict, change)[1:])) for change in verdict.moved]
    return [*rows, *(f"likely cause: {cause}" for cause in verdict.causes), *filter(None, [verdict.note])]


def counted(verdicts: Sequence[Verdict]) -> str:
    """How many cases there are."""
    return f"{len(verdicts)} case{'s' * (len(verdicts) != 1)}"


def headline(verdicts: Sequence[Verdict]) -> str:
    """The outcome in one line: how many cases came to what."""
    words = {
        "same": "as their goldens say",
        "moved": "moved",
        "missing": "without a golden",
        "stale": "with a golden but no case",
        "skipped": "skipped",
    }
    counts = {said: sum(verdict.status == status for verdict in verdicts) for status, said in words.items()}
    return ", ".join(f"{count} {said}" for said, count in counts.items() if count)


def _number(value: float | None) -> str:
    if value is None:
        return "none"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"


def _percent(change: Change) -> str:
    if change.share is None:
        return "-"
    percent = change.share * 100
    # What is exact may move by the last bit, and is then not to be shown as nothing.
    text = f"{percent:+.2f} %" if not percent or abs(percent) >= 0.01 else f"{percent:+.1e} %"
    if change.interval is None:
        return text
    low, high = (100 * end for end in change.interval)
    return f"{text} ({low:+.2f} to {high:+.2f})"
