"""Runs to report on: small ones, and as awkward as Runs can be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_outcome import trace_of
from msgspec import structs

from laminabench.catalog.cost_file import load_costs
from laminabench.catalog.find_model import model
from laminabench.runs.manifest import Manifest
from laminabench.runs.read import Run, read_run
from laminabench.runs.status import statuses
from laminabench.runs.write import write_run
from laminabench.systems.registry import papers_setup
from laminabench.traces.table import Trace
from laminabench.workflows.replay import Workload
from laminabench.workflows.replay import replay as run_replay

Keep = Callable[..., Run]


def made_trace(name: str, requests: int = 400) -> Trace:
    rng = np.random.default_rng(5)
    arrival_s = np.sort(rng.uniform(0, 20, requests))
    lengths = (rng.integers(100, 4000, requests), rng.integers(1, 60, requests))
    return trace_of(*lengths, arrival_s, name=name, sha256="ab" * 32)


@pytest.fixture(scope="session")
def keep(tmp_path_factory: pytest.TempPathFactory, manifest_of: Callable[..., Manifest]) -> Keep:
    """Replay a small trace, keep the Run and read it back. A `live` one is pretended: it says of prompts when
    they were done, and not which iterations computed them.
    """

    def save(
        system: str = "lamina",
        *,
        trace: str = "small",
        live: bool = False,
        slo_tbt_ms: float = 60.0,
        slo_ttft_ms: float | None = None,
        prefill: bool = False,
        **summary: Any,
    ) -> Run:
        setup = papers_setup(system, model("llama3-70b"), load_costs("vllm-0.14"))
        requests, workload = made_trace(trace), Workload(slo_tbt_ms=slo_tbt_ms, slo_ttft_ms=slo_ttft_ms)
        if prefill:
            setup = replace(setup, prompt_budget=2048, admission="grow")
        done = run_replay(requests, system, setup, workload)
        outcome = done.outcome
        if live:
            outcome = replace(
                outcome,
                prompts=None,
                iterations={**outcome.iterations, "network_s": outcome.iterations["network_s"] * np.nan},
                requests={**outcome.requests, "status": statuses(outcome)},
            )
        facts = manifest_of(
            requests,
            workload={"mode": workload.mode, "concurrency": None, "policy": "fifo", "slo_tbt_ms": slo_tbt_ms},
            system=system,
            deployment=setup.deployment.describe().with_facts(done.facts),
            backend="live" if live else "modelled",
            coefficients=[] if live else done.coefficients,
            summary=structs.replace(done.summary, **summary),
        )
        directory: Path = tmp_path_factory.mktemp("runs") / system
        write_run(directory, outcome, requests, facts)
        return read_run(directory)

    return save
