"""A generated file of a live replay."""

from __future__ import annotations

import random
from pathlib import Path

from laminabench.runs.live import Header, LiveFile
from laminabench.util.live_progress import FaultEvent, Moment

DEAD = 2**22 + 1  # no process has this number


def made_live(path: Path, pid: int = DEAD, *, steps: int = 240, trace: str = "azure-conv") -> None:
    """Write the file of a process, running or not: a quarter of a second each step, a fault in the middle."""
    header = Header(
        laminabench="1",
        pid=pid,
        pid_started=None,
        began="2026-11-24T12:00:00Z",
        command=("laminabench", "replay"),
        request="",
        trace=trace,
        requests=400,
        system="lamina",
        deployment="1xcpu+1xcpu",
        model="llama-mini",
        mode="saturate",
        slo_tbt_ms=100.0,
        kv_capacity_tokens=60_000,
        workers=("model 0", "attention 0"),
    )
    file, draw = LiveFile(path, header), random.Random(5)
    for step in range(1, steps + 1):
        since = step - steps // 2  # the fault
        file.write(
            Moment(
                at_s=step / 4,
                finished=step,
                failed=0,
                requests=400,
                tokens=150 * step,
                tokens_per_s=(0.6 if 0 < since < 6 else 1.0) * draw.gauss(600, 12) if step > 4 else None,
                tbt_ms_p50=draw.gauss(52, 0.6),
                tbt_ms_p99=draw.gauss(84, 2) + (60 if 0 < since < 12 else 0),
                batch=draw.randint(30, 34),
                waiting=max(0, 360 - step),
                kv_tokens=draw.randint(40_500, 42_500),
            )
        )
        if since == 0:
            at_s = step / 4
            file.write(
                FaultEvent(
                    at_s=at_s, workers=("attention 0",), why="attention 0 has ended", resumed_s=at_s + 0.4
                )
            )
    file.close()
