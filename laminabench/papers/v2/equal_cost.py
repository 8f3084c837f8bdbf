"""v2's Lamina and vLLM on real traces at about equal cost (figure 10): vLLM as it was, and as it is."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import pandas as pd

from laminabench.catalog.cost_file import load_costs
from laminabench.catalog.cost_terms import Float64
from laminabench.catalog.eras import Era, load_eras
from laminabench.catalog.find_model import model
from laminabench.catalog.network import parse_network
from laminabench.papers.context import COST_SETS, TRACES, Context
from laminabench.papers.paper import Result
from laminabench.workflows.compare.assumptions import assumptions, left_out
from laminabench.workflows.compare.cells import Cell, Grid, View, grid_cells
from laminabench.workflows.compare.eras import readings_of
from laminabench.workflows.compare.spec import ComparisonSpec
from laminabench.workflows.validate import published

PAIR = ("vllm", "lamina")
EQUAL_COST_MODELS = ("llama-33b", "llama-65b", "llama3-70b")
THEN, NOW = load_eras()["vllm-2024"], load_eras()["vllm-2026"]
# The deployment of vLLM's CI that is nearest to figure 10's.
_CI = ("llama3-70b", "4xh200")
_CI_REQUESTS = published.table()["requests"]


def fig10(context: Context) -> Result:
    """Replay both systems on every trace: in both eras, and with both measured sets and one host for all."""
    spec = ComparisonSpec(PAIR, network=parse_network("fhbn"))
    views = [View(load_costs(era.costs), readings_of(spec, era)) for era in (THEN, NOW)]
    views += [View(costs, (spec,)) for costs in context.costs()]
    # Today's kernels with what else vLLM had in 2024.
    slow = tuple(each for each in readings_of(spec, THEN) if each.reading and not each.reading.same_host)
    views.append(View(load_costs(NOW.costs), slow))
    models, traces = [model(name) for name in EQUAL_COST_MODELS], [context.trace(name) for name in TRACES]
    every = grid_cells(Grid(views, models, traces), jobs=1)
    count = len(every) - len(slow) * len(models) * len(traces)
    cells, of_slow = every[:count], every[count:]
    in_eras = [cell for cell in cells if cell.reading]
    frame = _frame(cells)
    eras = frame[frame["era"] != ""]
    limits = context.published("fig10")["gains"]
    values = {
        "source": context.source_of(*TRACES),
        "then": THEN.name,
        "now": NOW.name,
        "then_costs": THEN.costs,
        "now_costs": NOW.costs,
        "host_ms": THEN.host_ms,
        "eras_assumed": "; ".join(assumptions(in_eras, PAIR)),
        "plain_assumed": "; ".join(assumptions(_of(cells, None), PAIR)),
        "left_out": "".join(f" {each}." for each in left_out(in_eras)),
        "gain_limits": (
            min(0, eras["gain_percent"].min()) - 5,
            max(eras["gain_percent"].max(), limits[1]) + 5,
        ),
        **_gains(cells, of_slow, limits),
    }
    shown = eras[~eras["hosts_alike"]].assign(label=lambda rows: rows["system"] + ", " + rows["era"])
    return Result(frame, values, {"eras": shown, "gains": _bands(eras)})


def _frame(cells: Sequence[Cell]) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "era": cell.reading.era.name if cell.reading else "",
            "hosts_alike": cell.same_host,
            "costs": cell.costs,
            "model": cell.model,
            "trace": cell.trace,
            "system": name,
            "host_ms_per_step": 0.0 if cell.hosts[name].behind else cell.hosts[name].per_step_ms,
            "host_behind": cell.hosts[name].behind,
            "max_num_seqs": cell.limits[name],
            "tokens_per_s": cell.throughput_tokens_per_s[name],
            "tbt_p50_ms": cell.tbt_ms[name],
            "mean_batch": cell.mean_batch[name],
            "usd_per_hour": cell.usd_per_hour[name],
            "gain_percent": _gain(cell),
            "gain_per_dollar_percent": 100 * cell.gain_per_dollar_of("lamina", "vllm"),
            "left_out": cell.dropped,
        }
        for cell in cells
        for name in PAIR
    )


def _gain(cell: Cell) -> float:
    return 100 * cell.gain_of("lamina", "vllm")


def _of(cells: Sequence[Cell], era: Era | None, *, same_host: bool = False) -> list[Cell]:
    return [
        cell
        for cell in cells
        if (cell.reading.era if cell.reading else None) == era and cell.same_host == same_host
    ]


def _gains(cells: Sequence[Cell], of_slow: Sequence[Cell], limits: tuple[float, float]) -> dict[str, object]:
    then, same_host = _of(cells, THEN), _of(cells, THEN, same_host=True)
    now, plain = _of(cells, NOW), _of(cells, None)
    named = {"then": then, "alike": same_host, "now": now, "plain": plain, "slow": of_slow}
    measured, left = step_and_rest()
    lines = Lines.of(then)
    return {
        "gains": {name: [_gain(cell) for cell in some] for name, some in named.items()},
        "by_host": [
            [_gain(cell) for cell in same_host if cell.hosts["vllm"].per_step_ms == host]
            for host in THEN.host_ms
        ],
        "needed_ms": [lines.host_of(place, gain) for place, gain in zip((0, -1), limits, strict=True)],
        "measured_ms": measured,
        "left_ms": left,
        "most_left_ms": max(left.values()),
        "at_most_left": lines.at(max(left.values())),
        "ci_requests": _CI_REQUESTS,
        "top_batch": max(then, key=_gain).mean_batch["vllm"],
        "ratios": [
            float(np.mean([cell.mean_batch["lamina"] / cell.mean_batch["vllm"] for cell in some]))
            for some in (then, now)
        ],
    }


class Lines(NamedTuple):
    """The gain of each cell as a line in what vLLM's host takes, by which each of its steps is longer."""

    slope: Float64
    start: Float64

    @classmethod
    def of(cls, cells: Sequence[Cell]) -> Lines:
        """Return the lines through two cells of each model and trace, of two hosts."""
        ends: dict[tuple[str, str], list[tuple[float, float]]] = {}
        for cell in cells:
            ends.setdefault((cell.model, cell.trace), []).append(
                (cell.hosts["vllm"].per_step_ms, _gain(cell))
            )
        (hosts, gains), (slower, most) = np.array([*ends.values()]).transpose(1, 2, 0)
        slope = (most - gains) / (slower - hosts)
        return cls(slope, gains - slope * hosts)

    def at(self, host_ms: float) -> list[float]:
        """Return the gains from the lowest to the highest."""
        return sorted((self.start + self.slope * host_ms).tolist())

    def host_of(self, place: int, gain: float) -> float:
        """Return the host's time with which the lowest gain (0) or the highest (-1) is this."""
        hosts = np.linspace(0, 50, 5001)
        return float(np.interp(gain, [self.at(host)[place] for host in hosts], hosts))


@cache
def step_and_rest() -> tuple[float, dict[str, float]]:
    """Return a step of vLLM's CI in milliseconds, and the part that kernels of each set leave unexplained."""
    steps = published.table()["output_tokens"]
    left, measured = {}, 0.0
    for name in COST_SETS:
        (row,) = (each for each in published.rows(name) if (each.model, each.deployment) == _CI)
        assert row.predicted_ms is not None
        measured = row.measured_ms / steps
        host = 1000 * float(load_costs(name).host.seconds(_CI_REQUESTS))
        left[name] = measured - row.predicted_ms / steps + host
    return measured, left


def _bands(eras: pd.DataFrame) -> pd.DataFrame:
    """Return the gains of each trace from one end to the other, side by side for the eras."""
    look = eras["era"].where(~eras["hosts_alike"], "alike")
    look = look.where((eras["era"] == THEN.name) | ~eras["hosts_alike"], "")
    rows = eras.assign(look=look)[look != ""]
    ends = rows.groupby(["model", "look", "trace"])["gain_percent"].agg(["min", "max"]).reset_index()
    aside = ends["look"].map({THEN.name: -0.2, "alike": 0.0, NOW.name: 0.2})
    # A band of one reading has a height too.
    middle, half = (ends["min"] + ends["max"]) / 2, ((ends["max"] - ends["min"]) / 2).clip(lower=1.0)
    at = ends["trace"].map(TRACES.index) + aside
    return ends.assign(at=at, low=middle - half, high=middle + half)
