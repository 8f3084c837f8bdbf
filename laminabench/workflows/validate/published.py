"""Published numbers, and the modelled cluster's predictions of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from laminabench.catalog.cost_file import load_costs
from laminabench.catalog.entries import Table, packaged_in
from laminabench.traces.table import TraceMeta, make_trace
from laminabench.util.errors import UserError
from laminabench.util.json import JsonObject
from laminabench.workflows.validate.server import replayed

# In percent: of each row, and of the mean of absolute errors.
TARGET, MEAN_TARGET = 10.0, 5.0


@dataclass(frozen=True, slots=True)
class Row:
    """One printed number; without a prediction it says why."""

    model: str
    deployment: str
    costs: str
    measured_ms: float
    predicted_ms: float | None
    why_not: str = ""

    @property
    def error(self) -> float | None:
        """The difference in percent."""
        return None if self.predicted_ms is None else 100 * (self.predicted_ms / self.measured_ms - 1)

    def describe(self) -> JsonObject:
        """Return a JSON description."""
        return {
            "model": self.model,
            "deployment": self.deployment,
            "costs": self.costs,
            "measured_ms": self.measured_ms,
            "predicted_ms": self.predicted_ms,
            "error_percent": self.error,
            "why_not": self.why_not,
        }


def table() -> Table:
    """Return the published numbers and their sources."""
    return packaged_in(__package__, "published.toml")


def rows(costs: str | None = None) -> list[Row]:
    """Return every row predicted with the cost set of its time, or another."""
    numbers = table()
    return [_row(numbers, each, costs or numbers["costs"]) for each in numbers["row"]]


def with_other_sets(results: list[Row]) -> list[Row]:
    """Add the rows as predicted with cost sets of other times, for the accuracy board."""
    numbers = table()
    also = numbers["also"] if results and results[0].costs == numbers["costs"] else ()
    return [*results, *(row for costs in also for row in rows(costs))]


def mean_error(results: list[Row]) -> float:
    """Return the mean of known absolute errors, in percent."""
    known = [abs(row.error) for row in results if row.error is not None]
    return float(np.mean(known)) if known else float("nan")


def missed(results: list[Row]) -> list[str]:
    """Return the targets that are not met."""
    far = [f"{row.model} on {row.deployment}" for row in results if abs(row.error or 0.0) > TARGET]
    return far + (["mean"] if mean_error(results) > MEAN_TARGET else [])


def _row(published: Table, row: Table, costs: str) -> Row:
    about = (row["model"], row["deployment"], costs, row["latency_ms"])
    count = published["requests"]
    trace = make_trace(
        np.zeros(count),
        np.full(count, published["prompt_tokens"], np.int32),
        np.full(count, published["output_tokens"], np.int32),
        TraceMeta("vLLM's latency test"),
    )
    try:
        requests = replayed({**published, **row}, trace, load_costs(costs))
    except UserError as error:
        if error.code != "costs-no-coefficients":
            raise
        return Row(*about, None, str(error))
    return Row(*about, 1000 * float(np.mean(requests["finished_s"])))
