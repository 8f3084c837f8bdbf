"""Table 4: the traces that the paper replays."""

from __future__ import annotations

from typing import TYPE_CHECKING

from laminabench.figures.claims import Claim
from laminabench.figures.ground import TRACES, Ground
from laminabench.figures.paper import Made
from laminabench.figures.style import table_picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Request traces used for evaluation"
# Requests, mean prompt tokens, mean output tokens, as printed.
PUBLISHED = {
    "azure-conv": (19366, 1154.7, 211.1),
    "azure-code": (8819, 2047.8, 27.9),
    "kimi-conv": (12031, 12035.1, 342.6),
    "kimi-ta": (23608, 8560.0, 182.1),
}
# That of kimi-ta was never fitted to a file.
_GENERATED = ("generated from the fitted profile", "generated from a profile that has this table's means")
_WHAT = {"requests": "requests", "mean prompt tokens": "prompt", "mean output tokens": "output"}


def make(ground: Ground) -> Made:
    """The traces at hand, beside what the paper counts in them."""
    import pandas as pd

    rows: list[tuple[object, ...]] = []
    claims: list[Claim] = []
    for name in TRACES:
        trace = ground.trace(name)
        real = trace.meta.source == "file"
        ours = (len(trace), float(trace.prompt_tokens.mean()), float(trace.output_tokens.mean()))
        how = "computed: from the real trace" if real else _GENERATED[name == "kimi-ta"]
        remark = "" if ground.num_requests is None else f"Of its first {len(trace):,} requests only."
        both = zip(PUBLISHED[name], ours, strict=True)
        rows.append((name, *(value for pair in both for value in pair), "real" if real else "profile"))
        claims += [
            Claim(
                f"{what} of {name}",
                "table 4",
                float(printed),
                float(mine),
                how,
                remark=remark,
                entered=not real and name == "kimi-ta",
            )
            for what, printed, mine in zip(_WHAT, PUBLISHED[name], ours, strict=True)
        ]
    columns = [
        "trace",
        *(f"{words}\n{whose}" for words in _WHAT.values() for whose in ("published", "ours")),
        "ours\nis",
    ]
    frame = pd.DataFrame(rows, columns=columns)
    return Made(
        frame, tuple(claims), f"Computed: {ground.source_of(*TRACES)}. Prompt and output tokens are means."
    )


def draw(made: Made) -> Figure:
    """The table."""
    shown = made.frame.map(
        lambda value: (
            f"{value:,.1f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else value
        )
    )
    return table_picture(shown, note=made.how)
