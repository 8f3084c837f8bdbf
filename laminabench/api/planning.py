"""`lb.plan`: the deployment that serves a trace cheapest within a limit, as `laminabench plan` finds it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from msgspec import structs

from laminabench.analysis.verdict import Verdict
from laminabench.api import html
from laminabench.api.frames import pandas
from laminabench.api.html import Picture
from laminabench.api.keywords import request_of, with_keywords
from laminabench.api.messages import MessageLog
from laminabench.api.replay import named
from laminabench.render.html import sentences
from laminabench.render.sheets.plan import sheet_of
from laminabench.requests.plan import PlanRequest
from laminabench.systems.includes import Includes
from laminabench.traces.resolve import cut, transforms_of
from laminabench.traces.table import Trace
from laminabench.util.errors import UserError
from laminabench.util.json import to_json
from laminabench.workflows.plan.answer import Answer
from laminabench.workflows.plan.measure import Point
from laminabench.workflows.plan.request import ResolvedPlan, resolve
from laminabench.workflows.plan.verdict import described, includes, verdict_on
from laminabench.workflows.replay.run import load

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from laminabench.api.keyword_types import PlanKeywords
    from laminabench.api.replay import TraceLike


@dataclass(frozen=True)
class Plan:
    """The cheapest deployment within the limit, all that was replayed on the way, and what binds it."""

    request: ResolvedPlan = field(repr=False)
    """The request, with every name looked up."""
    trace: Trace = field(repr=False)
    answer: Answer = field(repr=False)
    notes: tuple[str, ...]

    @property
    def best(self) -> Point | None:
        """The winner: its `candidate`, `tokens_per_s`, `tbt_p99_ms`, `usd_per_million_tokens` and more.

        None where nothing meets the limit; `nearest` then comes nearest to it.
        """
        return self.answer.winner

    @property
    def nearest(self) -> Point | None:
        """The fastest candidate that serves the trace, if there is no winner."""
        return self.answer.nearest

    @property
    def verdict(self) -> Verdict:
        """The cheapest system and the next one within the limits, and how sure that is."""
        return verdict_on(self.answer)

    @property
    def includes(self) -> Includes:
        """The contents of the numbers: prompts, kernels, assumptions and the known error."""
        return includes(self.answer)

    @property
    def binding(self) -> str | None:
        """The resource of which a tenth more would help the winner most; `effects` has the others."""
        return self.answer.effects[0].resource if self.answer.effects else None

    @property
    def front(self) -> pd.DataFrame:
        """Within the limit, what no other beats in both cost and time between tokens, the fastest first."""
        return self._frame(self.answer.front)

    @property
    def replayed(self) -> pd.DataFrame:
        """Every candidate that was replayed in full."""
        return self._frame(self.answer.search.points)

    @property
    def effects(self) -> pd.DataFrame:
        """The winner's gain from a tenth more of each resource alone; shares of 1."""
        frame: pd.DataFrame = pandas().DataFrame([to_json(each) for each in self.answer.effects])
        return frame

    def plot(self) -> Picture:
        """Cost against time between tokens, as `laminabench plan --plot`."""
        return Picture(self._figure)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Keep it as a folder that `laminabench view` shows."""
        from laminabench.workflows.plan.stored import require_free, write_plan

        target = Path(path)
        require_free(target)
        write_plan(target, self._facts())
        return target

    def __repr__(self) -> str:
        return "\n".join((self._title(), *self.verdict.sentences, str(self.includes)))

    def _repr_html_(self) -> str:
        points = self.answer.front or ([self.nearest] if self.nearest else [])
        subject = "the front of cost and TBT" if self.answer.front else "nearest to the limit"
        sheet = html.sheet(sheet_of(subject, points, self.answer))
        answer = sentences([*self.verdict.sentences, *self.includes.lines], "verdicts")
        return html.block(self._title(), answer, sheet, sentences(self.notes), badges=["modelled"])

    def _title(self) -> str:
        request = self.request.request
        first = request.slo_ttft_ms
        limit = f"TBT p99 of at most {request.slo_tbt_p99_ms:g} ms"
        limit += f", TTFT p99 of at most {first:g} ms" if first else ""
        costs = self.answer.question.costs.name
        how = f"{request.mode}, modelled, costs {costs}"
        what = f"{self.trace.meta.name}, {len(self.trace):,} requests with {self.request.model.name}"
        return f"{what} ({how}): {limit}, at most ${self.request.budget:.2f} an hour"

    def _frame(self, points: Sequence[Point]) -> pd.DataFrame:
        rows = [self.answer.row_of(each) for each in points]
        nested = {name for row in rows for name, value in row.items() if isinstance(value, dict | list)}
        frame: pd.DataFrame = pandas().DataFrame(rows)
        return frame.drop(columns=[name for name in frame.columns if name in nested])

    def _figure(self) -> Figure:
        from laminabench.render.static.pictures import plan_picture
        from laminabench.workflows.plan.stored import plan_of

        return plan_picture(plan_of(self._facts()))

    def _facts(self) -> dict[str, object]:
        return {**self.request.describe(self.trace), **described([self.answer])}


@with_keywords(PlanRequest)
def plan(
    trace: TraceLike,
    slo_tbt_p99_ms: float,
    *,
    jobs: int | None = None,
    progress: bool = False,
    **keywords: Unpack[PlanKeywords],
) -> Plan:
    """Find the deployment that serves a trace cheapest within a limit of time between tokens, all modelled.

    Args:
        trace: As for `replay`.
        slo_tbt_p99_ms: The 99th percentile of time between tokens that is good enough, in ms.
        jobs: Processes at once; as many as cores by default.
        progress: Show on stderr how far the search is.
        **keywords: The other flags of `laminabench plan`.

    Returns:
        The plan. Where nothing meets the limit, `best` is None and `nearest` comes nearest.

    Examples:
        >>> import laminabench as lb
        >>> few = {"num_requests": 200, "most_devices": 8, "jobs": 1, "devices": ("h100", "h20")}
        >>> plan = lb.plan("profile:azure-conv", 60, systems=("lamina", "vllm"), **few)
        >>> plan.best.tbt_p99_ms <= 60, plan.best.candidate.system in ("lamina", "vllm")
        (True, True)
    """
    messages = MessageLog(progress=progress)
    name, given = named(trace)
    request = request_of(
        PlanRequest, dict(keywords), "plan()", trace=name, slo_tbt_p99_ms=slo_tbt_p99_ms, jobs=jobs
    )
    if len(request.costs) > 1:
        raise UserError("replay-value", "plan(): costs has several names; a plan has one cost set")
    request.replay.require_gaps()
    resolved = resolve(request, messages)
    workload = structs.replace(request.replay, trace=name)
    cut_trace = load(workload, messages) if given is None else cut(given, transforms_of(workload), messages)
    (question,) = resolved.questions(cut_trace)
    answer = resolved.answer(question, messages)
    return Plan(resolved, cut_trace, answer, tuple(messages.notes))
