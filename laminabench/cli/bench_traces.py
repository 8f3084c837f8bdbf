"""`laminabench bench traces`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from laminabench.cli.output import Output, reporting
from laminabench.cli.verdict import verdict

if TYPE_CHECKING:
    from rich.console import Console


@click.command()
@click.option("--csv-rows", type=click.IntRange(min=1), default=1_000_000, show_default=True)
@click.option("--parquet-rows", type=click.IntRange(min=1), default=27_000_000, show_default=True)
@click.option("--repeats", type=click.IntRange(min=1), default=5, show_default=True)
@reporting
def traces(csv_rows: int, parquet_rows: int, repeats: int, out: Output) -> None:
    """Load a CSV in Azure's format (beside pandas) and open a large parquet trace, targets beside them."""
    from laminabench.bench.traces import run

    out.note(f"writing {csv_rows:,} CSV rows and {parquet_rows:,} parquet rows to measure with")
    result = run(csv_rows, parquet_rows, repeats)
    out.result(result, lambda console: _render(console, result))


def _render(console: Console, result: dict[str, Any]) -> None:
    csv, parquet = result["csv"], result["parquet"]
    target = f"target {csv['target_s']:g} s"
    console.print(
        f"csv      {csv['rows']:>12,} rows  {_seconds(csv['seconds'])}  {target}  {verdict(csv['met'])}"
    )
    ratio = csv["speedup_over_pandas"]["median"]
    than_ours = f"{ratio:.1f} times slower" if ratio >= 1 else f"{1 / ratio:.1f} times faster"
    console.print(
        f"         pandas.read_csv in the same run {_seconds(csv['pandas_seconds'])}: {than_ours} than ours"
    )
    console.print(
        f"parquet  {parquet['rows']:>12,} rows  {_seconds(parquet['seconds'])}  "
        f"target {parquet['target_s']:g} s, "
        f"peak {parquet['peak_bytes'] / 1e9:.2f} GB of {parquet['target_bytes'] / 1e9:g} GB  "
        f"{verdict(parquet['met'])}"
    )


def _seconds(spread: dict[str, float]) -> str:
    return f"{spread['median']:.3f} s ({spread['min']:.3f} to {spread['max']:.3f})"
