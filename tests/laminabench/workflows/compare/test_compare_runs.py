"""Runs side by side, of engines and of what only a client saw: groups, ratios, and what is said of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_outcome import trace_of

from laminabench.analysis.estimate import Estimate
from laminabench.analysis.metrics_table import COMPARED, SUMMARISED
from laminabench.catalog.deployment import DeploymentFacts
from laminabench.runs.manifest import Manifest, Partial
from laminabench.runs.status import FAILED
from laminabench.runs.write import write_run
from laminabench.sim.outcome import Outcome
from laminabench.sim.simulate import Offered, simulate
from laminabench.sim.spec import Spec, Timing
from laminabench.util.errors import UserError
from laminabench.workflows.compare.rounds import compare_runs
from laminabench.workflows.compare.sides import Side, SideBySide, failures, parse_gate, side_by_side

SaveRun = Callable[..., Path]


@pytest.fixture
def save_run(tmp_path: Path, manifest_of: Callable[..., Manifest]) -> SaveRun:
    """Keep a Run of some requests; `slow` is how many times as long everything takes."""

    def keep(name: str, slow: float = 1.0, requests: int = 60, **facts: Any) -> Path:
        rng = np.random.default_rng(4)
        lengths = (rng.integers(1, 20, requests), rng.integers(20, 60, requests))
        trace = trace_of(*lengths, name="some", sha256=facts.pop("sha256", "ab" * 32))
        table = np.full(9, 1e-3 * slow)
        outcome = simulate(
            trace, Spec(1, Timing(table, table, table, table, table * 1e-3), 500, 8), Offered("saturate", 0)
        )
        workload = {"mode": "saturate", "slo_tbt_ms": facts.pop("slo_tbt_ms", 5.0)}
        options = {"batches": facts.pop("batches", 1), "timeline": name, "costs": facts.pop("costs", None)}
        usd, watts = facts.pop("usd_per_hour", 10.0), facts.pop("power_w", None)
        known = {
            "deployment": DeploymentFacts(name="2xh100+4xh20", usd_per_hour=usd, power_w=watts),
            "backend": "live",
        }
        written = manifest_of(
            trace,
            transforms={"sample": None, "seed": facts.pop("seed", 0)},
            workload={**workload, "options": options},
            **(known | facts),
        )
        write_run(tmp_path / name, outcome, trace, written)
        return tmp_path / name

    return keep


def labels(compared: SideBySide) -> list[str]:
    return [side.label for side in compared.sides]


def test_rounds_of_one_live_thing_are_one_side(save_run: SaveRun) -> None:
    paths = []
    for seed in range(3):
        paths.append(save_run(f"one{seed}", seed=seed))
        paths.append(save_run(f"two{seed}", 2.0, batches=2, seed=seed))
    compared, notes = compare_runs(paths)
    assert [len(side.runs) for side in compared.sides] == [3, 3]
    assert notes == []
    ratio = compared.ratio("throughput", 1)
    assert ratio.value == pytest.approx(0.5, rel=1e-3)
    assert not ratio.exact
    separate, _ = compare_runs(paths, group=False)
    assert len(separate.sides) == 6
    assert labels(separate) == [str(path) for path in paths]


def test_rounds_that_differ_have_an_interval(save_run: SaveRun) -> None:
    one = [save_run(f"one{i}", 1 + i / 20) for i in range(3)]
    alone = save_run("modelled", backend="modelled")
    compared, _ = compare_runs([*one, alone])
    interval = compared.ratio("throughput", 1).interval
    assert interval is not None
    assert interval.low < 1.05 < interval.high
    assert compared.sides[1].estimates["throughput"].exact


def test_identical_rounds_give_no_confidence_interval(save_run: SaveRun) -> None:
    """As where every token was in time: 100 % in three rounds is not 100 % for certain."""
    paths = [save_run(name, backend="live", slo_tbt_ms=1e6) for name in ("one", "two", "three")]
    compared, _ = compare_runs([*paths, save_run("other", batches=2, slo_tbt_ms=1e6)])
    attained = compared.sides[0].estimates["token_attainment"]
    assert (attained.value, attained.exact, attained.interval) == (1.0, False, None)


def test_a_run_is_not_a_round_of_itself(save_run: SaveRun, tmp_path: Path) -> None:
    one = save_run("one")
    with pytest.raises(UserError, match="compare-run-twice"):
        compare_runs([one, save_run("two"), tmp_path / "two" / ".." / "one"])


def test_modelled_runs_are_exact_and_never_grouped(save_run: SaveRun) -> None:
    paths = [save_run("one", backend="modelled"), save_run("two", 2.0, backend="modelled")]
    compared, notes = compare_runs(paths)
    assert labels(compared) == [str(path) for path in paths]
    ratio = compared.ratio("throughput", 1)
    assert (ratio.exact, ratio.interval, ratio.value) == (True, None, pytest.approx(0.5))
    assert notes == []


def test_the_base_can_be_any_of_the_runs(save_run: SaveRun, tmp_path: Path) -> None:
    paths = [save_run("one", backend="modelled"), save_run("two", 2.0, backend="modelled")]
    compared, _ = compare_runs(paths, base=tmp_path / "x" / ".." / "two")
    assert compared.ratio("throughput", 0).value == pytest.approx(2.0)
    assert compared.ratio("throughput", 1).exact
    with pytest.raises(UserError, match="compare-base-unknown"):
        compare_runs(paths, base=tmp_path / "other")


def test_reasons_why_runs_are_incomparable_are_noted(save_run: SaveRun) -> None:
    one = save_run("one", backend="modelled")
    two = save_run("two", model={"name": "llama-33b"}, sha256="cd" * 32, slo_tbt_ms=9.0)
    _, notes = compare_runs([one, two])
    message = "\n".join(notes)
    for words in (
        "different traces (some abababababab, some cdcdcdcdcdcd)",
        "different models (llama3-70b, llama-33b)",
        "different backends (modelled, live)",
        "different TBT limits (5, 9 ms)",
        "does not know how one start differs",
    ):
        assert words in message
    assert "modes" not in message
    compared, notes = compare_runs([one, two], slo_tbt_ms=3.0)
    assert "TBT limits" not in "\n".join(notes)
    assert compared.slo_tbt_ms == 3.0


def test_cost_sets_of_different_years_are_noted(save_run: SaveRun) -> None:
    runs = [save_run(name, costs=name) for name in ("vllm-0.14", "vllm-0.24")]
    _, notes = compare_runs(runs, slo_tbt_ms=None)
    assert any("vllm-0.14, vllm-0.24" in note for note in notes)
    _, notes = compare_runs([runs[0], save_run("again", costs="vllm-0.14")], slo_tbt_ms=None)
    assert not any("cost sets" in note for note in notes)


def test_one_limit_for_all_is_computed_from_the_tables(save_run: SaveRun) -> None:
    paths = [
        save_run("one", backend="modelled", slo_tbt_ms=1e-3),
        save_run("two", backend="modelled", slo_tbt_ms=1e-3),
    ]
    none, _ = compare_runs(paths)
    every, _ = compare_runs(paths, slo_tbt_ms=1e3)
    assert none.sides[0].estimates["token_attainment"].value == 0.0
    assert every.sides[0].estimates["token_attainment"].value == 1.0


def test_one_live_run_has_intervals_of_its_own(save_run: SaveRun) -> None:
    compared, _ = compare_runs([save_run("one", requests=600), save_run("two", 1.5, requests=600, batches=2)])
    for name in ("throughput", "tbt_p50", "usd_per_million_tokens", "throughput_at_equal_cost"):
        assert compared.sides[0].estimates[name].interval is not None, name
        assert compared.ratio(name, 1).interval is not None, name
    assert compared.ratio("throughput", 1).value == pytest.approx(1 / 1.5, rel=1e-3)
    assert compared.sides[0].estimates["usd_per_hour"].exact
    short, notes = compare_runs([save_run("three", requests=3), save_run("four", requests=3, batches=2)])
    assert short.ratio("throughput", 1).interval is None
    assert any("too few iterations" in note for note in notes)


def test_energy_is_there_where_the_manifest_has_the_power(save_run: SaveRun) -> None:
    paths = [save_run("one", backend="modelled", power_w=2000.0), save_run("old", 2.0, backend="modelled")]
    compared, _ = compare_runs(paths)
    one, old = (side.estimates["joules_per_token"].value for side in compared.sides)
    rate = compared.sides[0].estimates["throughput"].value
    assert rate is not None
    assert (one, old) == (pytest.approx(2000.0 / rate), None)
    assert compared.ratio("joules_per_token", 1).value is None


def test_what_is_no_run_of_a_replay_is_refused(tmp_path: Path, save_run: SaveRun) -> None:
    with pytest.raises(UserError, match="run-not-a-run"):
        compare_runs([tmp_path, save_run("whole")])
    for place in ("model.name", "workload.slo_tbt_ms", "deployment.usd_per_hour"):
        path = save_run("three") / "run.json"
        document = json.loads(path.read_text())
        around, name = place.split(".")
        document[around][name] = ["x"]
        del document["crc32"]
        path.write_text(json.dumps(document))
        with pytest.raises(UserError, match="run-damaged"):
            compare_runs([path.parent, save_run("two")])


REQUESTS, TOKENS = 8, 200
PARTIAL = Partial(why="the server is gone", at_s=3.21)


@pytest.fixture
def save_client_run(
    tmp_path: Path, stream: Any, observed: Callable[..., Outcome], manifest_of: Callable[..., Manifest]
) -> SaveRun:
    """Keep a Run of a server whose chunks come every `gap_s` or so."""

    def keep(name: str, gap_s: float = 0.01, **facts: Any) -> Path:
        rng = np.random.default_rng(facts.pop("seed", 1))
        trace = trace_of([TOKENS] * REQUESTS, [TOKENS] * REQUESTS, name="some", sha256="ab" * 32)
        changes, tokens = facts.pop("changes", {}), facts.pop("tokens", 1)
        ends = 0.5 + np.cumsum(rng.lognormal(np.log(gap_s), 0.1, TOKENS))
        outcome = observed(
            [stream(chunks=[(at_s, tokens) for at_s in ends], **changes) for _ in range(REQUESTS)]
        )
        known = {
            "workload": {"mode": "saturate", "slo_tbt_ms": 20.0, "options": {}},
            "system": "openai",
            "deployment": DeploymentFacts(name="a url", usd_per_hour=None),
            "backend": "live",
        }
        written = manifest_of(trace, **(known | facts))
        write_run(tmp_path / name, outcome, trace, written)
        return tmp_path / name

    return keep


def test_servers_are_compared_as_engines_are(save_client_run: SaveRun) -> None:
    compared, notes = compare_runs([save_client_run("fast"), save_client_run("slow", 0.02, system="other")])
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


def test_rounds_of_a_server_are_one_column(save_client_run: SaveRun) -> None:
    one = [save_client_run(f"one{seed}", seed=seed) for seed in range(3)]
    compared, _ = compare_runs([*one, save_client_run("other", 0.02, system="other")])
    assert [len(side.runs) for side in compared.sides] == [3, 1]
    assert compared.sides[0].estimates["ttft_p50"].interval is not None


def test_a_client_and_an_engine_do_not_see_the_same(save_run: SaveRun, save_client_run: SaveRun) -> None:
    compared, notes = compare_runs([save_client_run("server"), save_run("engine", system="lamina")])
    assert any("some Runs saw their tokens in the engine and some as a client" in note for note in notes)
    assert any("some Runs have their prompts computed" in note for note in notes)
    assert compared.sides[1].estimates["ttft_p50"].value is None
    (failed,) = failures([parse_gate("ttft_p99>1.1")], compared, strict=False)
    assert "there is no ttft_p99" in failed


def test_servers_with_other_chunk_sizes_are_noted(save_client_run: SaveRun) -> None:
    one, four = save_client_run("one"), save_client_run("four", system="other", tokens=4)
    _, notes = compare_runs([one, four])
    assert any(note.startswith("chunks have 1, 4 tokens on average: TBT is of tokens") for note in notes)
    _, notes = compare_runs([one, save_client_run("same", system="same")])
    assert not any("chunks" in note for note in notes)


def test_failures_and_estimates_are_noted(save_client_run: SaveRun) -> None:
    failed = save_client_run("failed", changes={"status": FAILED, "error": "reset"})
    even = save_client_run("dealt", system="other", changes={"even": True})
    _, notes = compare_runs([failed, even])
    assert any(f"{failed} has {REQUESTS} requests that failed" in note for note in notes)
    assert any(f"{even} does not know which tokens a chunk had" in note for note in notes)


def test_a_partial_run_is_labelled_and_is_no_round(save_client_run: SaveRun) -> None:
    whole, other = save_client_run("whole", seed=1), save_client_run("other", seed=2)
    partial = save_client_run("partial", seed=3, partial=PARTIAL)
    compared, notes = compare_runs([whole, other, partial])
    assert [len(side.runs) for side in compared.sides] == [2, 1]
    assert compared.sides[1].label == f"{partial} (PARTIAL)"
    sentence = "PARTIAL, it ended after 3.2 s: the server is gone"
    assert [side["partial"] for side in compared.describe()["sides"]] == [None, sentence]
    assert notes[0] == f"{partial} is {sentence}"


@pytest.mark.parametrize("base", ["whole", "partial"])
def test_a_gate_does_not_judge_a_partial_run(save_client_run: SaveRun, tmp_path: Path, base: str) -> None:
    paths = [save_client_run("whole"), save_client_run("partial", partial=PARTIAL)]
    compared, _ = compare_runs(paths, base=tmp_path / base)
    assert failures([], compared, strict=False) == []
    with pytest.raises(UserError, match="gate-partial-run"):
        failures([parse_gate("throughput<0.01")], compared, strict=False)


def side(name: str, throughput: Estimate, usd_per_hour: float | None = 10.0) -> Side:
    estimates = {metric.name: Estimate(None) for metric in SUMMARISED}
    estimates |= {"throughput": throughput, "usd_per_hour": Estimate(usd_per_hour)}
    return Side(name, name, "4xh100", "llama3-70b", "live", estimates)


def of(*sides: Side, base: int = 0) -> SideBySide:
    return side_by_side(sides, base, 100.0)


def failed(text: str, compared: SideBySide, *, strict: bool = False) -> list[str]:
    return failures([parse_gate(text)], compared, strict=strict)


def test_an_exact_ratio_beyond_the_limit_fails() -> None:
    compared = of(side("old", Estimate(100.0)), side("new", Estimate(94.0)))
    assert failed("throughput<0.95", compared) == [
        "throughput<0.95: new has 0.94 times the throughput of old"
    ]
    assert failed("throughput<0.94", compared) == []
    assert failed("throughput > 0.93", compared) != []
    assert failed("THROUGHPUT>.94", compared) == []
    # What is judged to the last digit is told to more than the limit has.
    (line,) = failed("throughput<0.9400001", of(side("old", Estimate(1e6)), side("new", Estimate(939_996.0))))
    assert line == "throughput<0.9400001: new has 0.939996 times the throughput of old"


def test_a_measured_ratio_fails_when_all_of_its_interval_is_beyond() -> None:
    unsure = of(side("old", Estimate(100.0)), side("new", Estimate(94.0, 0.02, 7)))
    assert failed("throughput<0.95", unsure) == []
    assert failed("throughput<0.95", unsure, strict=True) != []
    sure = of(side("old", Estimate(100.0)), side("new", Estimate(94.0, 0.001, 7)))
    (line,) = failed("throughput<0.95", sure)
    assert "(0.9378 to 0.9422)" in line
    assert failed("throughput>0.9", unsure) == []
    assert failed("throughput>0.9", sure) != []


def test_the_base_passes_and_every_other_side_is_judged() -> None:
    compared = of(side("a", Estimate(50.0)), side("b", Estimate(100.0)), side("c", Estimate(60.0)), base=1)
    assert [line.split()[1] for line in failed("throughput<0.95", compared)] == ["a", "c"]


def test_what_cannot_be_judged_fails() -> None:
    compared = of(side("old", Estimate(100.0)), side("new", Estimate(100.0)))
    (line,) = failed("tbt_p99>1.1", compared)
    assert "there is no tbt_p99 of new and old to compare" in line


def test_throughput_at_equal_cost_is_in_proportion_to_the_price() -> None:
    compared = of(side("old", Estimate(100.0), 10.0), side("new", Estimate(90.0, 0.01, 7), 5.0))
    ratio = compared.ratio("throughput_at_equal_cost", 1)
    assert ratio.value == pytest.approx(1.8)
    assert ratio.error == pytest.approx(0.01)
    unknown = of(side("old", Estimate(100.0), None), side("new", Estimate(90.0), 5.0))
    assert unknown.ratio("throughput_at_equal_cost", 1).value is None


NO_GATES = ("throughput", "throughput<", "throughput<=0.9", "<0.9", "throughput<x", "")


@pytest.mark.parametrize(
    ("text", "code"), [*((text, "gate-syntax") for text in NO_GATES), ("speed<1", "gate-metric-unknown")]
)
def test_what_is_no_gate_is_refused_with_the_metrics(text: str, code: str) -> None:
    with pytest.raises(UserError, match=code):
        parse_gate(text)


def test_an_interval_of_a_share_ends_at_1() -> None:
    near = Estimate(0.99, 0.1, 7)
    interval = COMPARED["token_attainment"].interval(near)
    assert interval is not None
    assert interval.high == 1.0
    assert interval.low < 0.99
