"""Progress bars for a terminal, one per step, with a line of detail below."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from laminabench.cli.progress import Step
from laminabench.render.terminal import visible

REFRESHES_PER_S = 4
BAR_WIDTH = 30


class Bars:
    """Bars that are redrawn below all messages, and removed at the end."""

    def __init__(self, steps: list[Step], console: Console) -> None:
        self._steps, self._console = steps, console
        self._live = Live(
            get_renderable=self._drawn,
            console=console,
            transient=True,
            refresh_per_second=REFRESHES_PER_S,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def start(self) -> None:
        self._live.start(refresh=True)

    def stop(self) -> None:
        self._live.stop()

    def ended(self, step: Step) -> None:
        """Redraw a step's final state, before it is removed."""
        del step
        self._live.refresh()

    def print_message(self, sentence: str) -> None:
        """Print a message above the bars."""
        self._console.print(Text(f"laminabench: {visible(sentence)}"), soft_wrap=True)

    def _drawn(self) -> RenderableType:
        rows: list[RenderableType] = []
        for step in list(self._steps):
            bar = ProgressBar(
                total=step.total, completed=step.done, width=BAR_WIDTH, pulse=step.total is None
            )
            grid = Table.grid(padding=(0, 1))
            for _ in range(3):
                grid.add_column(no_wrap=True)
            grid.add_column(no_wrap=True, overflow="ellipsis", style="cyan")
            when = ", ".join(part for part in (step.elapsed, step.left) if part)
            grid.add_row(Text(step.what), bar, Text(step.counted()), Text(when))
            rows.append(grid)
            if step.more:
                rows.append(Text(f"  {step.more}", no_wrap=True, overflow="ellipsis", style="dim"))
        return Group(*rows)
