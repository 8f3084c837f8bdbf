"""How fast the virtual cluster is: one hour of traffic, Figure 10's 24 runs, the whole command, a week."""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from laminabench.bench.timing import seconds_of, timed
from laminabench.catalog.cost_file import DEFAULT_COSTS, load_costs
from laminabench.catalog.find_model import model
from laminabench.sim.simulate import Offered, simulate
from laminabench.sim.spec import Mode, Spec
from laminabench.systems.registry import papers_setup, system
from laminabench.traces.resolve import resolve
from laminabench.traces.table import Trace

HOUR_TARGET_S = 0.015
FIGURE_10_TARGET_S = 1.0
COLD_TARGET_S = 1.0
WEEK_TARGET_S = 90.0
WEEK_TARGET_BYTES = 6e9
FIGURE_10_MODELS = ("llama-33b", "llama-65b", "llama3-70b")
FIGURE_10_TRACES = ("azure-conv", "azure-code", "kimi-conv", "kimi-ta")

Row = dict[str, object]


def run(*, week: bool, repeats: int = 5) -> list[Row]:
    """A row a measurement: what, median seconds with spread, target, met."""
    conv = resolve("azure-conv", offline=True)
    rows = [
        _hour(conv, "saturate", repeats),
        _hour(conv, "open", repeats),
        _figure_10(repeats),
        _cold(repeats),
    ]
    return [*rows, _week()] if week else rows


def spec_of(system_name: str, model_name: str) -> Spec:
    """The default deployment of a system for a model."""
    setup = papers_setup(system_name, model(model_name), load_costs(DEFAULT_COSTS))
    return system(system_name).build(setup).spec


def simulation_seconds(trace: Trace, spec: Spec, offered: Offered, repeats: int) -> list[float]:
    """How long each of so many simulations took, after one that nobody counts."""
    outcome = simulate(trace, spec, offered)
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        # Letting go of the last outcome is not part of the simulation: it is kept until the next is there.
        following = simulate(trace, spec, offered)
        seconds.append(time.perf_counter() - start)
        outcome = following
    assert len(outcome.requests["arrival_s"]) == len(trace)
    return seconds


def _hour(trace: Trace, mode: Mode, repeats: int) -> Row:
    seconds = simulation_seconds(trace, spec_of("lamina", "llama3-70b"), Offered(mode), repeats)
    what = f"azure-conv on lamina/llama3-70b, {mode}: simulation"
    return timed(what, seconds, HOUR_TARGET_S, requests=len(trace), tokens=int(trace.output_tokens.sum()))


def _figure_10(repeats: int) -> Row:
    traces = [resolve(name, offline=True) for name in FIGURE_10_TRACES]

    def all_runs() -> None:
        for model_name in FIGURE_10_MODELS:
            for system_name in ("vllm", "lamina"):
                spec = spec_of(system_name, model_name)
                for trace in traces:
                    simulate(trace, spec, Offered())

    all_runs()
    return timed(
        "Figure 10: 3 models x 4 traces x 2 systems",
        [seconds_of(all_runs) for _ in range(repeats)],
        FIGURE_10_TARGET_S,
    )


def _cold(repeats: int) -> Row:
    """The whole command as a person runs it: start, imports, trace, simulation, Run directory."""
    with tempfile.TemporaryDirectory(prefix="laminabench-bench-") as folder:

        def whole() -> None:
            _run_replay(folder, "--trace", "azure-conv")

        whole()
        return timed(
            "laminabench replay, whole command with its files",
            [seconds_of(whole) for _ in range(repeats)],
            COLD_TARGET_S,
        )


def _week() -> Row:
    """27 million requests, generated and replayed; once, because it takes a while."""
    with tempfile.TemporaryDirectory(prefix="laminabench-bench-") as folder:
        seconds = seconds_of(lambda: _run_replay(folder, "--trace", "azure-2024-conv", "--mode", "open"))
    # Of the largest child so far: no other comes near this one.
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    row = timed(
        "azure-2024-conv, 27.3 million requests, whole command", [seconds], WEEK_TARGET_S, peak_bytes=peak
    )
    row["target_bytes"] = WEEK_TARGET_BYTES
    row["met"] = bool(row["met"]) and peak <= WEEK_TARGET_BYTES
    return row


def _run_replay(folder: str, *arguments: str) -> None:
    """`laminabench replay` in a process of its own, its Run under the folder."""
    command = [sys.executable, "-m", "laminabench", "replay", *arguments, "--offline", "--json", "-q"]
    subprocess.run([*command, "--out", str(Path(folder) / "run")], capture_output=True, check=True)
