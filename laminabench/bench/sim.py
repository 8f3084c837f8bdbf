"""Benchmark of replays: of the virtual cluster (`run`) and of boards with two memories (`run_boards`)."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from laminabench.bench.frame import (
    QUIET,
    Report,
    Row,
    Watcher,
    in_turns,
    ratios,
    relative,
    seconds_of,
    spread,
    timed,
    times_report,
)
from laminabench.catalog.cost_file import load_costs
from laminabench.catalog.find_model import model
from laminabench.sim.simulate import Offered, simulate
from laminabench.sim.spec import Fleet, Mode, Spec
from laminabench.systems.modelled.h2m2.boards import board
from laminabench.systems.modelled.h2m2.mapping import BATCH, ITERATIONS, LONGEST, dynamic_trace, uniform
from laminabench.systems.modelled.h2m2.timing import shape_of
from laminabench.systems.modelled.prepared import MAX_BATCHED_TOKENS
from laminabench.systems.registry import papers_setup, system
from laminabench.traces.resolve import resolve
from laminabench.traces.table import Trace
from laminabench.util.child_environment import child_environment
from laminabench.util.host import processor

COSTS = "vllm-0.14"  # which stays, so that speeds compare over time
LONGEST_S = 3600.0  # limit for a measuring process
DECISION_TARGET_S = 20e-6
DECISIONS = 200
SCENARIO_TARGET_S = 0.050
BOARD_MODEL, BOARD = "gpt3-175b", "h2m2"
# The paper's solver, and the optimum.
SOLVERS = ("greedy", "oracle")
LENGTHS = range(16, LONGEST + 1, 16)
HOUR_TARGET_S = 0.015
FIGURE_10_TARGET_S = 1.0
COLD_TARGET_S = 1.0
WEEK_TARGET_S = 90.0
WEEK_TARGET_BYTES = 6e9
FLEET_TARGET_S = 180.0
FLEET_TARGET_BYTES = 8e9
INSTANCES_OF_WEEK = 1000
WEEK_OF_INSTANCES = (
    *("--system", "vllm", "--deployment", "4xh100"),
    *("--instances", str(INSTANCES_OF_WEEK), "--no-iterations"),
)
PROMPTS_TARGET_RATIO = 3.0
INSTANCES, INSTANCES_TARGET_RATIO = 16, 1.5
FIGURE_10_MODELS = ("llama-33b", "llama-65b", "llama3-70b")
FIGURE_10_TRACES = ("azure-conv", "azure-code", "kimi-conv", "kimi-ta")

# Imports of other tools that read tables.
IMPORTS = "import pandas, pyarrow.parquet, numpy"
IMPORTS_TARGET_RATIO = 0.8
REPLAY = (sys.executable, "-m", "laminabench", "replay", "--offline", "--json", "-q")


def run(*, week: bool, repeats: int = 5, watcher: Watcher = QUIET) -> Report:
    """Measure the cluster: an hour of traffic, Figure 10's 24 runs, the complete command, a week."""
    conv = resolve("azure-conv", offline=True)
    rows = [
        _hour(conv, "saturate", repeats),
        _hour(conv, "open", repeats),
        *_prompts(conv, repeats),
        *_instances(conv, repeats),
        _figure_10(repeats),
        *_command(conv, repeats, watcher),
    ]
    if week:
        rows.append(_week("", WEEK_TARGET_S, WEEK_TARGET_BYTES))
        rows += [
            _week(f" on {INSTANCES_OF_WEEK} instances, {router}", FLEET_TARGET_S, FLEET_TARGET_BYTES, *flags)
            for router in ("round-robin", "least-requests")
            for flags in [(*WEEK_OF_INSTANCES, "--router", router)]
        ]
    return times_report("sim", rows, f"{processor()}; the trace azure-conv is its {conv.meta.source}")


def run_boards(*, repeats: int = 5) -> Report:
    """Measure boards: decisions of both solvers, the paper's dynamic scenario, an hour of traffic."""
    board_spec = spec_of("h2m2", BOARD_MODEL)
    trace = resolve("azure-conv", offline=True)
    what = f"the dynamic scenario: {ITERATIONS} iterations of {BATCH} requests, memory managed"
    managed = spec_of("h2m2", BOARD_MODEL, max_num_seqs=BATCH)
    seconds = simulation_seconds(dynamic_trace(0), managed, Offered(), repeats)
    hour = simulation_seconds(trace, board_spec, Offered(), repeats)
    rows = [
        *(_decision(solver, repeats) for solver in SOLVERS),
        timed(what, seconds, SCENARIO_TARGET_S),
        timed(f"azure-conv on 1x{BOARD}/{BOARD_MODEL}: simulation", hour, None, requests=len(trace)),
    ]
    return times_report("h2m2", rows)


def _decision(solver: str, repeats: int) -> Row:
    """Measure decisions over lengths, each by the median of its repeats; judged by the slowest length."""
    from laminabench import _sim

    chosen = board(BOARD)
    measured = [
        _sim.h2m2_decide(
            board=chosen.native(),
            shape=shape_of(model(BOARD_MODEL)),
            policy=solver,
            moments=[uniform(BATCH, length, chosen) for length in LENGTHS],
            repeats=DECISIONS,
        )
        for _ in range(repeats)
    ]
    seconds = [statistics.median(of_length) for of_length in zip(*measured, strict=True)]
    what = f"a decision of {solver}, {BOARD_MODEL}, batch {BATCH}, {len(LENGTHS)} lengths"
    return replace(timed(what, seconds, DECISION_TARGET_S), met=max(seconds) <= DECISION_TARGET_S)


def spec_of(system_name: str, model_name: str, **choices: Any) -> Spec:
    """Return a system's default deployment for a model, as in its paper except for these choices."""
    setup = papers_setup(system_name, model(model_name), load_costs(COSTS))
    return system(system_name).build(replace(setup, **choices)).spec


def simulation_seconds(trace: Trace, spec: Spec, offered: Offered, repeats: int) -> list[float]:
    """Return the seconds of each simulation, after one that is not counted."""
    outcome = simulate(trace, spec, offered)
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        # Freeing the last outcome is not part of the simulation: it is alive until the next one exists.
        following = simulate(trace, spec, offered)
        seconds.append(time.perf_counter() - start)
        outcome = following
    assert len(outcome.requests["arrival_s"]) == len(trace)
    return seconds


def _hour(trace: Trace, mode: Mode, repeats: int) -> Row:
    seconds = simulation_seconds(trace, spec_of("lamina", "llama3-70b"), Offered(mode), repeats)
    what = f"azure-conv on lamina/llama3-70b, {mode}: simulation"
    return timed(what, seconds, HOUR_TARGET_S, requests=len(trace), tokens=int(trace.output_tokens.sum()))


def _prompts(trace: Trace, repeats: int) -> list[Row]:
    """Measure with prompts computed alongside decoding or on separate devices, and without, in turns."""
    own = papers_setup("vllm", model("llama3-70b"), load_costs(COSTS)).deployment
    prompts = {"prompt_budget": MAX_BATCHED_TOKENS, "admission": "grow"}
    specs = {
        "without": spec_of("vllm", "llama3-70b"),
        "beside decoding": spec_of("vllm", "llama3-70b", **prompts),
        "in a pool": spec_of("vllm", "llama3-70b", **prompts, deployment=replace(own, prefill=own.model)),
    }
    took = _simulated_in_turns(trace, specs, "saturate", repeats)
    return [
        relative(
            f"azure-conv on vllm/llama3-70b: simulation with prompts {where} / without",
            ratios(took[where], took["without"]),
            PROMPTS_TARGET_RATIO,
            with_seconds=spread(took[where]),
            cpu=processor(),
        )
        for where in ("beside decoding", "in a pool")
    ]


def _instances(trace: Trace, repeats: int) -> list[Row]:
    """Measure several instances with the load of one, and that one, in turns."""
    one = spec_of("vllm", "llama3-70b")
    rows = []
    cases: list[tuple[Mode, str, bool]] = [
        ("saturate", "round-robin", True),
        ("saturate", "least-requests", True),
        ("open", "round-robin", True),
        ("open", "round-robin", False),
        ("open", "least-requests", False),
    ]
    for mode, router, keep in cases:
        several = Fleet((replace(one, copies=INSTANCES),), router, keep_iterations=keep)
        alone = Fleet((one,), keep_iterations=keep)
        took = _simulated_in_turns(trace, {"several": several, "one": alone}, mode, repeats)
        how = f"{mode}, {router}{'' if keep else ', no iterations kept'}"
        rows.append(
            relative(
                f"azure-conv on vllm/llama3-70b, {how}: {INSTANCES} instances / one",
                ratios(took["several"], took["one"]),
                INSTANCES_TARGET_RATIO,
                one_seconds=spread(took["one"]),
                cpu=processor(),
            )
        )
    return rows


def _simulated_in_turns(
    trace: Trace, deployed: Mapping[str, Spec | Fleet], mode: Mode, repeats: int
) -> dict[str, list[float]]:
    """Return the seconds of each, after a round that is not counted."""
    actions = {
        name: lambda one=one: seconds_of(lambda: simulate(trace, one, Offered(mode)))
        for name, one in deployed.items()
    }
    in_turns(actions, 1)
    return in_turns(actions, repeats)


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


def _command(trace: Trace, repeats: int, watcher: Watcher) -> tuple[Row, Row]:
    """Measure the complete command, compared with a Python that only imports what reads tables elsewhere."""
    with tempfile.TemporaryDirectory(prefix="laminabench-bench-") as folder:
        replay = [*REPLAY, "--trace", "azure-conv", "--system", "lamina", "--out", str(Path(folder) / "run")]
        actions = {
            "replay": lambda: seconds_of(lambda: _run(replay)),
            "imports": lambda: seconds_of(lambda: _run([sys.executable, "-c", IMPORTS])),
        }
        in_turns(actions, 1)  # not counted: reads from the disk
        took = in_turns(actions, repeats, watcher.progress)
    return (
        timed("laminabench replay, whole command with its files", took["replay"], COLD_TARGET_S),
        relative(
            f"the same / python -c '{IMPORTS}'",
            ratios(took["replay"], took["imports"]),
            IMPORTS_TARGET_RATIO,
            imports_seconds=spread(took["imports"]),
            cpu=processor(),
            trace_source=trace.meta.source,
        ),
    )


def _week(what: str, target_s: float, target_bytes: float, *flags: str) -> Row:
    """Measure 27 million requests, generated and replayed; once, because it takes long."""
    with tempfile.TemporaryDirectory(prefix="laminabench-bench-") as folder:
        out = ("--out", str(Path(folder) / "run"))
        start = time.perf_counter()
        peak = _peak_bytes([*REPLAY, "--trace", "azure-2024-conv", "--mode", "open", *out, *flags])
        seconds = time.perf_counter() - start
    memory = {"peak_bytes": peak, "target_bytes": target_bytes}
    what = f"azure-2024-conv, 27.3 million requests{what}, whole command"
    row = timed(what, [seconds], target_s, **memory)
    of_memory = f"{what}, {peak / 1e9:.1f} of {target_bytes / 1e9:g} GB"
    met = bool(row.met) and peak <= target_bytes
    return replace(row, cells=(of_memory, *row.cells[1:]), met=met)


def _peak_bytes(command: Sequence[str]) -> int:
    """Return the peak memory of a command, independent of other children."""
    nowhere = subprocess.DEVNULL
    with subprocess.Popen(command, env=child_environment(), stdout=nowhere, stderr=nowhere) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return used.ru_maxrss * 1024


def _run(command: Sequence[str]) -> None:
    subprocess.run(command, env=child_environment(), capture_output=True, check=True, timeout=LONGEST_S)
