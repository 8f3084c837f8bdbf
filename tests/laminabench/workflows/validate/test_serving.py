"""Measured loads of servers beside what is modelled of the same."""

from __future__ import annotations

from collections import Counter
from dataclasses import astuple

import numpy as np
import pytest

from laminabench.catalog.deployment import parse_deployment
from laminabench.catalog.find_model import modelled
from laminabench.util.errors import UserError
from laminabench.workflows.validate.serving import (
    ALL,
    METRICS,
    SOUND,
    TARGETS,
    Errors,
    Judged,
    ServerLoad,
    grouped,
    judged,
    points,
    predicted,
)


def point(**expected: object) -> ServerLoad:
    """The first with these."""
    return next(
        each
        for each in points()
        if all(expected[name] == getattr(each, name, each.server.get(name)) for name in expected)
    )


def made(device: str, model: str, tpot_ms: float | None, off: str = "", version: str = "1") -> Judged:
    """Measured: 10 ms a token, 100 ms to the first."""
    about = {"model": model, "device": device, "version": version, "precision": "fp8", "off": off}
    return Judged(ServerLoad(about, "2", 8, 8, 2, 100.0, 10.0, "-"), 110.0, tpot_ms)


def test_every_load_is_there_once_with_sensible_numbers() -> None:
    assert Counter(each.device for each in points()) == {"h200": 273, "b200": 412}
    rows = [
        (each.server["version"], each.server["precision"], each.model, *astuple(each)[1:])
        for each in points()
    ]
    assert len(set(rows)) == len(rows)
    for each in points():
        assert 1 < each.tpot_ms < 120
        assert each.tpot_ms < each.ttft_ms
        workers = parse_deployment(each.deployment).model
        assert workers.device.name == each.device
        each.shape().check_split(workers.shared())


def test_formats_are_those_that_were_served() -> None:
    fp4 = point(model="minimax-m2.5", device="b200", precision="fp4").shape()
    assert (fp4.dtype, fp4.kv_dtype, fp4.expert_dtype) == ("bf16", "fp8", "nvfp4")
    marlin, mxfp4 = (
        point(model="gpt-oss-120b", device="h200", version=version).shape()
        for version in ("0.18.0", "0.10.2")
    )
    assert (marlin.dtype, marlin.kv_dtype, marlin.expert_dtype) == ("bf16", "bf16", "int4")
    assert mxfp4.expert_dtype == "mxfp4"


def test_lengths_are_drawn_as_the_benchmark_draws_them() -> None:
    requested = point(model="gpt-oss-120b", prompt_tokens=8192, concurrency=64).trace()
    assert len(requested) == 640
    assert not requested.arrival_s.any()
    assert 6553 <= requested.prompt_tokens.min() < 6600
    assert 8150 < requested.prompt_tokens.max() <= 8192
    assert np.mean(requested.output_tokens) == pytest.approx(0.9 * 1024, rel=0.01)
    # numpy's legacy generator with seed 0, prompts first.
    drawn = np.random.RandomState(0)
    assert requested.prompt_tokens.tolist() == drawn.randint(6553, 8193, 640).tolist()
    assert requested.output_tokens.tolist() == drawn.randint(819, 1025, 640).tolist()
    equal = point(model="qwen3-235b-a22b").trace()
    assert len(set(equal.prompt_tokens.tolist())) == 1


def test_hosts_are_those_of_versions_devices_and_how_servers_were_started() -> None:
    today = point(model="kimi-k2.5", device="b200", version="0.15.1").host
    assert (today.asynchronous, today.per_step_s, today.gap_s) == (True, 0.0, 0.0)
    assert today.out_s == pytest.approx(1.1 * 5.7e-3)
    assert today.launch_s(modelled("kimi-k2.5")) == pytest.approx(1.1 * 1.9e-3)
    piecewise = point(model="llama3-70b", device="h200").host
    assert (piecewise.asynchronous, piecewise.gap_s) == (True, 5e-4)
    synchronous = point(model="llama3.1-8b").host
    assert (synchronous.asynchronous, synchronous.per_step_s) == (False, 1e-3)


def test_routers_compute_in_tf32_from_a_day_on() -> None:
    days = [point(model="minimax-m2.5", version="0.19.0", measured=f"2026-04-{day}") for day in ("08", "22")]
    assert [each.shape().router_dtype for each in days] == ["fp32", "tf32"]
    without = point(model="minimax-m2.5", device="h200", measured="2026-03-27")
    assert without.shape().router_dtype == "fp32"


def test_loads_that_constants_were_fitted_to_are_no_judges() -> None:
    fit = Counter((each.model, each.device) for each in points() if each.fit)
    assert fit["gpt-oss-120b", "h200"] == 51
    assert not any(
        each.fit
        for each in points()
        if each.server["version"] in ("0.10.2", "0.17.0") and each.device == "b200"
    )
    assert not any(
        each.fit for each in points() if each.prompt_tokens > 1024 and each.model != "gpt-oss-120b"
    )


@pytest.mark.parametrize(
    ("expected", "bound"),
    [
        ({"model": "gpt-oss-120b", "device": "h200", "layout": "2", "concurrency": 16}, 10.0),
        ({"model": "kimi-k2.5", "device": "h200", "concurrency": 16}, 10.0),
        ({"model": "llama3-70b", "device": "h200", "layout": "1", "concurrency": 8}, 5.0),
    ],
)
def test_some_loads_are_near_what_was_measured(expected: dict[str, object], bound: float) -> None:
    result = predicted(None, point(prompt_tokens=1024, output_tokens=1024, **expected))
    error = result.error("tpot")
    assert error is not None
    assert abs(error) < bound
    assert result.describe()["errors_percent"]["tpot"] == error


def test_a_set_without_the_device_or_the_model_says_so() -> None:
    result = predicted("vllm-0.14", point(model="kimi-k2.5", device="h200"))
    assert (result.tpot_ms, result.error("tpot")) == (None, None)
    assert result.why_not
    with pytest.raises(UserError, match="catalogue-unknown-name"):
        predicted("no-such-set", point(model="kimi-k2.5"))


def test_groups_errors_and_targets_by_hand() -> None:
    results = [
        made("h200", "gpt-oss-120b", 10.5, version="2"),
        made("h200", "gpt-oss-120b", 9.2),
        made("h200", "kimi-k2.5", 11.0),
        made("h200", "kimi-k2.5", 20.0, off="a reason"),
        made("b200", "kimi-k2.5", None),
    ]
    named = {(group.device, group.what, group.off): group for group in grouped(results)}
    assert list(named) == [
        ("h200", "gpt-oss-120b", ""),
        ("h200", "kimi-k2.5", ""),
        ("h200", SOUND, ""),
        ("h200", ALL, ""),
        ("h200", "kimi-k2.5", "a reason"),
        ("b200", "kimi-k2.5", ""),
        ("b200", ALL, ""),
    ]
    first = named["h200", "gpt-oss-120b", ""]
    assert first.errors["tpot"] == pytest.approx(Errors(2, 6.5, -1.5, -8.0, -1.5, 7.7))
    assert (first.versions, first.target, first.missed) == (("1", "2"), 7.0, False)
    assert named["h200", "kimi-k2.5", ""].missed
    assert not named["h200", "kimi-k2.5", "a reason"].missed
    assert named["h200", SOUND, ""].errors["tpot"].points == 3
    assert named["h200", ALL, ""].errors["tpot"].worst == pytest.approx(100)
    assert named["b200", ALL, ""].errors["tpot"].points == 0


@pytest.mark.long
def test_the_whole_table_is_as_accurate_as_documented() -> None:
    result = judged(points())
    assert all(each.tpot_ms for each in result)
    groups = {(group.device, group.what): group for group in grouped(result) if not group.off}
    for of, target in TARGETS.items():
        assert groups[of].errors["tpot"].median <= target + 1, of
    for device in ("h200", "b200"):
        assert groups[device, ALL].errors["tpot"].median < 12
        assert groups[device, SOUND].errors["tpot"].median < 10
    assert {metric for group in groups.values() for metric in group.errors} == set(METRICS)
