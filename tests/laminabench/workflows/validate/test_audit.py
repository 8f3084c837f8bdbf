"""Published steps against what the devices' data sheets allow."""

from __future__ import annotations

from dataclasses import replace

import pytest

from laminabench.workflows.validate.audit import audited
from laminabench.workflows.validate.disaggregation import packaged_rows


def test_every_measured_step_is_possible() -> None:
    steps = audited(packaged_rows())
    assert {each.verdict for each in steps} == {"possible"}


def test_a_step_that_reads_kv_faster_than_memory_is_not() -> None:
    row = next(each for each in packaged_rows() if each.system == "lamina")
    # Six requests of 128K of 94 layers with 4 KV heads of 128 in 8 bits, at 8 TB/s.
    floor = 1000 * 6 * 131072 * 94 * 2 * 4 * 128 / 8e12
    least = audited([row])[0].floors["fp8"]["KV over memory bandwidth"]
    assert least == pytest.approx(floor, rel=1e-6)
    times = (0.99 * floor, 1.01 * floor, 1.99 * floor, 2.01 * floor)
    steps = audited([replace(row, ms={"cuda": ms, "wall": None}) for ms in times])
    verdicts = ["impossible", "only with KV in fp8", "only with KV in fp8", "possible"]
    assert [each.verdict for each in steps] == verdicts
    assert {each.binding for each in steps} == {"KV over memory bandwidth"}


def test_a_classic_step_reads_kv_and_weights_from_one_memory() -> None:
    row = next(each for each in packaged_rows() if each.system == "vllm")
    short, long = audited([replace(row, shortest=1, longest=1), row])
    name = "KV and weights over memory bandwidth"
    assert 0 < short.floors["fp8"][name] < long.floors["fp8"][name]
