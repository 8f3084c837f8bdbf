from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import laminabench as lb
from laminabench.cli.main import run as command

EQUAL: dict[str, Any] = {
    "trace": "profile:azure-conv",
    "num_requests": 200,
    "model": "llama3-70b",
    "costs": "vllm-0.14",
    "equal_cost": True,
    "jobs": 1,
}


@pytest.fixture(scope="module")
def equal() -> lb.Comparison:
    return lb.compare(**EQUAL)


def _json(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    with pytest.raises(SystemExit):
        command([*words, "--json"])
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def test_ratios_are_to_the_first(lamina: lb.Run, vllm: lb.Run) -> None:
    result = lb.compare(lamina, vllm)
    ratio = result.ratio("tbt_p99")
    assert (lamina.tbt.p99, vllm.tbt.p99) != (None, None)
    assert ratio.value == pytest.approx(vllm.tbt.p99 / lamina.tbt.p99)  # type: ignore[operator]
    assert ratio.exact
    assert ratio.interval is None
    assert result.ratio("tbt_p99", "lamina 2xh100+4xh20").value == 1
    assert lb.compare(lamina, vllm, base=1).ratio("tbt_p99").value == pytest.approx(1 / ratio.value)  # type: ignore[operator]


def test_a_saved_run_equals_one_in_memory(
    lamina: lb.Run, vllm: lb.Run, nowhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lamina.save("a")
    vllm.save("b")
    result = lb.compare("a", nowhere / "b").table
    assert result.equals(lb.compare(lamina, vllm).table)
    reported = _json(capsys, "compare", "a", "b")["sides"]
    for place, side in enumerate(reported):
        own = result[result.side == side["label"]].set_index("metric").value
        assert all(own[name] == each["value"] for name, each in side["metrics"].items() if name in own), place


def test_two_of_a_kind_are_distinguished_by_position(lamina: lb.Run) -> None:
    other = lb.replay("profile:azure-conv", system="lamina", num_requests=200, batches=1, costs="vllm-0.14")
    assert list(lb.compare(lamina, other).table.side.unique()) == ["#1", "#2"]


def test_what_cannot_be_compared(lamina: lb.Run, equal: lb.Comparison) -> None:
    refused: list[tuple[str, Any]] = [
        ("compare-too-few", lambda: lb.compare(lamina)),
        ("compare-run-twice", lambda: lb.compare(lamina, lamina)),
        ("compare-base-unknown", lambda: lb.compare(lamina, lamina, base=2)),
        ("compare-equal-both", lambda: lb.compare(**EQUAL, equal_power=True)),
        ("gate-metric-unknown", lambda: equal.ratio("speed")),
        ("compare-side-unknown", lambda: equal.ratio("throughput", "vlm")),
        ("replay-key-unknown", lambda: lb.compare(**EQUAL, num_request=3)),
    ]
    for code, call in refused:
        with pytest.raises(lb.UserError, match=code):
            call()
    with pytest.raises(TypeError, match="modle"):
        lb.compare(lamina, lamina, modle="x")  # type: ignore[call-overload]


def test_systems_as_the_command_compares_them(
    equal: lb.Comparison, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = "--equal-cost --trace profile:azure-conv --num-requests 200 --model llama3-70b --costs vllm-0.14"
    reported = _json(capsys, "compare", *flags.split(), "--jobs", "1")
    (cell,) = reported["cells"]
    assert list(equal.verdicts) == reported["sentences"] == reported["verdict"]["sentences"]
    assert equal.verdict is not None
    assert equal.verdict.describe() == reported["verdict"] == cell["verdict"]
    assert equal.includes.startswith("Includes: ")
    assert all(each in equal.includes for texts in reported["includes"].values() for each in texts)
    assert list(equal.notes) == reported["notes"]
    rates = equal.table[equal.table.metric == "throughput"].set_index("side").value
    assert rates.to_dict() == cell["throughput_tokens_per_s"]
    gain = equal.ratio("throughput").value
    assert gain is not None
    assert gain - 1 == pytest.approx(cell["gain"]["lamina"])


def test_a_grid_has_a_row_for_each_side(nowhere: Path) -> None:
    result = lb.compare(
        **{**EQUAL, "costs": ("vllm-0.14", "vidur-2024"), "model": ["llama3-70b", "llama-65b"]}
    )
    assert len(result.ratios) == 2 * 2 * 2
    assert result.verdict is None
    assert result.verdicts[0].startswith("Of 4 cells the cheapest system within the limit is ")
    with pytest.raises(lb.UserError, match="compare-several"):
        result.ratio("throughput")
    assert len(repr(result).splitlines()) == 1 + 1 + 4
    page = result.report(nowhere / "grid.html").read_text()
    assert "llama-65b" in page
    assert "<script" not in page


def test_systems_on_a_frame_at_my_prices() -> None:
    frame = lb.traces.load("profile:azure-conv", num_requests=100)
    result = lb.compare(
        trace=frame,
        model="llama3-70b",
        costs="vllm-0.14",
        deployments={"lamina": "2xh100+2xh20", "vllm": "4xh100"},
        max_num_seqs={"vllm": 8},
        price={"h100": 3.0},
        jobs=1,
    )
    price = result.table[result.table.metric == "usd_per_hour"].set_index("side").value
    assert price["vllm"] == 12
    batch = result.table[result.table.metric == "mean_batch"].set_index("side").value
    assert batch["vllm"] <= 8
    assert list(result.table.trace.unique()) == ["dataframe"]
