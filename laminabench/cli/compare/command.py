"""`laminabench compare`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import click
from click.core import ParameterSource

from laminabench.cli.compare.options import CompareFlags, compare_options, require_together
from laminabench.cli.output import Output, reporting
from laminabench.cli.traces.options import TraceOptions, trace_options
from laminabench.errors import CheckFailedError

if TYPE_CHECKING:
    from laminabench.cli.compare.answers import Answer


@click.command()
@compare_options
@trace_options
@reporting
def compare(**flags: Any) -> None:
    """Runs side by side, or systems replayed on the same requests: ratios, cost, gates.

    \b
    laminabench compare runs/lamina runs/vllm
    laminabench compare runs/base-* runs/new-* --fail-on 'throughput<0.95' --fail-on 'tbt_p99>1.1'
    laminabench compare --equal-cost --trace azure-conv --model llama3-70b
    laminabench compare --model llama3-70b --deployment lamina=2xh200+4xh20 --equal-cost
    laminabench compare --live '--system vllm --deployment 2xcpu' --live '--system lamina' --trace azure-code

    With RUN: the first is what ratios are to. With --live: replays on this machine in turns, their Runs kept.
    Without: every system is replayed (modelled) on every trace with every model and cost set; requests that
    one of them could never hold are left out for all.
    """
    context = click.get_current_context()
    source = context.get_parameter_source
    given = {name for name in context.params if source(name) not in (None, ParameterSource.DEFAULT)}
    _Call(given, **flags).run()


class _Call:
    """The flags of one call, and the steps from them to an exit code."""

    def __init__(
        self, given: set[str], *, out: Output, workload: TraceOptions, **flags: Unpack[CompareFlags]
    ) -> None:
        self.given, self.out, self.options, self.flags = given, out, workload, flags

    def run(self) -> None:
        """Compare, print, write, judge."""
        from laminabench.compare.sides import failures, parse_gate
        from laminabench.figures.drawn import check_target
        from laminabench.present.sheets import print_sheets, write_markdown
        from laminabench.runs.replace import require_writable

        gates = [parse_gate(text) for text in self.flags["fail_on"]]
        if self.flags["plot"]:
            check_target(self.flags["plot"])
        if self.flags["markdown"]:
            require_writable(self.flags["markdown"])
        answer = self.answer()
        failed = [
            line
            for where, compared in answer.comparisons()
            for line in failures(gates, compared, strict=self.flags["strict"], where=where)
        ]
        result = {
            **answer.describe(),
            "gates": [str(gate) for gate in gates],
            "failed": failed,
        }
        for note in answer.notes:
            self.out.note(note)
        sheets = answer.sheets()
        if self.flags["markdown"]:
            write_markdown(self.flags["markdown"], sheets, answer.notes, failed)
        if self.flags["plot"]:
            answer.draw(self.flags["plot"])
        self.out.result(result, lambda console: print_sheets(console, sheets, failed))
        if failed:
            more = f", and {len(failed) - 1} more" if len(failed) > 1 else ""
            raise CheckFailedError("gate-failed", f"a gate failed: {failed[0]}{more}")

    def answer(self) -> Answer:
        """What the flags ask to be compared."""
        from laminabench.cli.compare.answers import of_runs, of_systems

        runs: tuple[Path, ...] = self.flags["runs"]
        require_together(compare, self.given, self.flags)
        if self.flags["live"]:
            from laminabench.cli.compare.live import of_live

            return of_live(self.flags, self.given, self.options, self.out)
        return of_runs(self.flags, self.out) if runs else of_systems(self.flags, self.options, self.out)
