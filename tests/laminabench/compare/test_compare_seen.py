"""Runs that only a client saw, Runs that ended early and Runs with failed requests, beside others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from laminabench.compare.gates import failures, parse_gate
from laminabench.compare.rounds import compare_runs
from laminabench.errors import UserError
from laminabench.runs.manifest import Manifest, Partial
from laminabench.runs.status import FAILED
from laminabench.runs.write import write_run
from laminabench.sim.outcome import Outcome
from laminabench.sim.simulate import Offered, simulate
from laminabench.sim.spec import Spec, Timing
from laminabench.traces.table import Trace, TraceMeta

Kept = Callable[..., Path]
REQUESTS, TOKENS = 8, 200
PARTIAL = Partial(why="the server is gone", at_s=3.21)


@pytest.fixture
def kept(
    tmp_path: Path, stream: Any, seen: Callable[..., Outcome], manifest_of: Callable[..., Manifest]
) -> Kept:
    """Keep a Run: of a server whose chunks come every `gap_s` or so, or of an engine."""

    def keep(name: str, gap_s: float | None = 0.01, **facts: Any) -> Path:
        rng = np.random.default_rng(facts.pop("seed", 1))
        lengths = np.full(REQUESTS, TOKENS, np.int32)
        trace = Trace(np.zeros(REQUESTS), lengths, lengths, TraceMeta("some", sha256="ab" * 32))
        changes, tokens = facts.pop("changes", {}), facts.pop("tokens", 1)
        if gap_s is None:
            table = np.full(9, 1e-3)
            timing = Timing(table, table, table, table, table * 1e-3)
            outcome = simulate(trace, Spec(1, timing, 4000, 8), Offered("saturate", 0))
        else:
            ends = 0.5 + np.cumsum(rng.lognormal(np.log(gap_s), 0.1, TOKENS))
            outcome = seen(
                [stream(chunks=[(at_s, tokens) for at_s in ends], **changes) for _ in range(REQUESTS)]
            )
        known = {
            "workload": {"mode": "saturate", "slo_tbt_ms": 20.0, "options": {}},
            "system": "openai",
            "deployment": {"name": "a url", "usd_per_hour": None, "power_w": None},
            "backend": "live",
        }
        written = manifest_of(trace, **(known | facts))
        write_run(tmp_path / name, outcome, trace, written)
        return tmp_path / name

    return keep


def test_servers_are_compared_as_engines_are(kept: Kept) -> None:
    compared, notes = compare_runs([kept("fast"), kept("slow", 0.02, system="other")])
    rows = {row.metric.name: row for row in compared.rows()}
    for name in ("tbt_mean", "tbt_p50", "itl_p50", "itl_p99"):
        assert rows[name].ratios[1].value == pytest.approx(2.0, rel=1e-6)
    assert rows["throughput"].ratios[1].value == pytest.approx(2.5 / 4.5, rel=0.05)  # with the wait before
    assert rows["ttft_p50"].ratios[1].value == pytest.approx(0.52 / 0.51, rel=0.02)
    ratio = compared.ratio("tbt_p50", 1)
    assert ratio.interval is not None
    assert ratio.interval.low < 2 < ratio.interval.high
    assert compared.ratio("ttft_p50", 1).interval is None  # a single Run does not tell how sure its TTFT is
    assert not any("as a client" in note for note in notes)


def test_rounds_of_a_server_are_one_column(kept: Kept) -> None:
    one = [kept(f"one{seed}", seed=seed) for seed in range(3)]
    compared, _ = compare_runs([*one, kept("other", 0.02, system="other")])
    assert [len(side.runs) for side in compared.sides] == [3, 1]
    assert compared.sides[0].estimates["ttft_p50"].interval is not None


def test_a_client_and_an_engine_do_not_see_the_same(kept: Kept) -> None:
    compared, notes = compare_runs([kept("server"), kept("engine", None, system="lamina")])
    assert any("some Runs saw their tokens in the engine and some as a client" in note for note in notes)
    assert compared.sides[1].estimates["ttft_p50"].value is None
    (failed,) = failures([parse_gate("ttft_p99>1.1")], compared, strict=False)
    assert "there is no ttft_p99" in failed


def test_servers_that_send_chunks_of_other_sizes_are_told_apart(kept: Kept) -> None:
    one, four = kept("one"), kept("four", system="other", tokens=4)
    _, notes = compare_runs([one, four])
    assert any(note.startswith("chunks have 1, 4 tokens on average: TBT is of tokens") for note in notes)
    _, notes = compare_runs([one, kept("same", system="same")])
    assert not any("chunks" in note for note in notes)


def test_what_failed_and_what_was_guessed_is_said(kept: Kept) -> None:
    failed = kept("failed", changes={"status": FAILED, "error": "reset"})
    dealt = kept("dealt", system="other", changes={"even": True})
    _, notes = compare_runs([failed, dealt])
    assert any(f"{failed} has {REQUESTS} requests that failed" in note for note in notes)
    assert any(f"{dealt} is of a server that does not say which tokens a chunk has" in note for note in notes)


def test_a_partial_run_is_labelled_and_is_no_round(kept: Kept) -> None:
    whole, other = kept("whole", seed=1), kept("other", seed=2)
    partial = kept("partial", seed=3, partial=PARTIAL)
    compared, notes = compare_runs([whole, other, partial])
    assert [len(side.runs) for side in compared.sides] == [2, 1]
    assert compared.sides[1].label == f"{partial} (PARTIAL)"
    sentence = "PARTIAL, it ended after 3.2 s: the server is gone"
    assert [side["partial"] for side in compared.describe()["sides"]] == [None, sentence]
    assert notes[0] == f"{partial} is {sentence}"


@pytest.mark.parametrize("base", ["whole", "partial"])
def test_a_gate_does_not_judge_a_partial_run(kept: Kept, tmp_path: Path, base: str) -> None:
    paths = [kept("whole"), kept("partial", partial=PARTIAL)]
    compared, _ = compare_runs(paths, base=tmp_path / base)
    assert failures([], compared, strict=False) == []
    with pytest.raises(UserError, match="gate-partial-run"):
        failures([parse_gate("throughput<0.01")], compared, strict=False)
