"""The assumptions of cells, and the requests that they leave out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from laminabench.systems.modelled.setup import ATTENTION_WORKING_BYTES, MEMORY_SHARE, WORKING_BYTES
from laminabench.workflows.compare.cells import Cell


def assumptions(cells: Sequence[Cell], names: Sequence[str]) -> Iterator[str]:
    """Yield the hosts and limits of each band, then the memory that is not for KV."""
    for band in dict.fromkeys(cell.band for cell in cells):
        own = [cell for cell in cells if cell.band == band and not cell.same_host]
        each = []
        for name in names:
            hosts = sorted(cell.hosts[name] for cell in own)
            limits = " or ".join(dict.fromkeys(f"{cell.limits[name]:,}" for cell in own))
            each.append(f"{name}'s host {hosts[0].to(hosts[-1])}, and at most {limits} requests run at once")
        yield f"{band}, kernels of {own[0].costs}: {'; '.join(each)}"
    yield (
        f"{MEMORY_SHARE:.0%} of a device's memory is used, {WORKING_BYTES / 1e9:g} GB of it not for "
        f"weights or KV ({ATTENTION_WORKING_BYTES / 1e9:g} GB on attention workers)"
    )


def left_out(cells: Sequence[Cell]) -> Iterator[str]:
    """Yield the number of requests that were left out, and why."""
    names = dict.fromkeys(
        (cell.model, cell.trace, cell.dropped, cell.least_room) for cell in cells if cell.dropped
    )
    for model, trace, count, least_room in names:
        yield (
            f"{count:,} requests of {trace} that not every system can hold with {model} are left out: "
            f"{least_room}"
        )
