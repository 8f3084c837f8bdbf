"""Prompts on devices of their own, and several instances: what a request makes of them, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec import UNSET

from laminabench.catalog.hardware import device
from laminabench.requests.replay import ReplayRequest
from laminabench.systems.modelled.prepared import PreparedModel
from laminabench.systems.modelled.setup import Modelled
from laminabench.systems.registry import prepare
from laminabench.util.errors import UserError
from laminabench.workflows.replay.run import run

TRACE = "arrival_s,prompt_tokens,output_tokens\n0,500,20\n0,900,30\n0.1,70,10\n"
ROUTER = """
class Raises:
    def __init__(self, instances):
        pass
    def route(self, *_):
        raise ValueError("none is good enough")
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "few.csv").write_text(TRACE)
    (tmp_path / "my_failing_router.py").write_text(ROUTER)
    monkeypatch.chdir(tmp_path)


def prepared(**chosen: Any) -> PreparedModel:
    result = prepare(ReplayRequest(trace="few.csv", **chosen))
    assert isinstance(result, PreparedModel)
    return result


def built(**chosen: Any) -> Modelled:
    result = prepared(**chosen)
    return result.system.build(result.setup)


def test_layers_that_look_at_a_window_hand_over_no_more_than_that() -> None:
    modelled = built(system="vllm", model="gpt-oss-120b", deployment="1xh200", prefill="pool:1xh200")
    pool, rate = modelled.spec.pool, modelled.facts["kv_handover_bytes_per_s"]
    assert pool is not None
    # Half of 36 layers; 2 x 8 heads x 64 x 2 bytes a token and layer.
    assert pool.window == 128
    assert pool.per_token == pool.windowed_per_token == pytest.approx(18 * 2048 / rate, rel=1e-9)
    dense = built(system="vllm", model="llama3-70b", deployment="4xh100", prefill="pool:4xh100").spec.pool
    assert dense is not None
    assert (dense.window, dense.windowed_per_token) == (0, 0.0)


@pytest.mark.parametrize(
    ("devices", "engines", "tp"), [("4xh100", 1, 4), ("8xh100", 1, 8), ("16xh100", 2, 8), ("12xh100", 3, 4)]
)
def test_devices_are_engines_of_the_largest_degree_that_divides_them(
    devices: str, engines: int, tp: int
) -> None:
    modelled = built(system="vllm", deployment="4xh100", prefill=f"pool:{devices}")
    pool = modelled.spec.pool
    assert pool is not None
    assert pool.engine.copies == engines
    expected = {"prefill": f"pool:{devices}", "prefill_engines": engines, "prefill_tensor_parallel": tp}
    assert modelled.facts | expected == modelled.facts
    assert modelled.facts["prefill_kv_tokens"] == engines * (pool.engine.tokens_per_pool // 16 * 16)


def test_devices_for_prompts_have_the_layout_that_is_given() -> None:
    modelled = built(system="vllm", model="minimax-m2.5", deployment="4xh200", prefill="pool:4xh200:dp4ep4")
    pool = modelled.spec.pool
    assert pool is not None
    assert (pool.engine.copies, pool.engine.pools, modelled.facts["prefill_tensor_parallel"]) == (1, 4, 1)


@pytest.mark.parametrize(("system", "pulls"), [("vllm", False), ("lamina", True)])
def test_vllm_pushes_and_lamina_pulls(system: str, pulls: bool) -> None:
    modelled = built(system=system, prefill="pool:4xh100", max_batched_tokens=512)
    pool = modelled.spec.pool
    assert pool is not None
    assert pool.pulled is pulls
    # What decodes computes no prompts beside that.
    assert (modelled.spec.prompt_budget, pool.engine.prompt_budget) == (0, 512)
    expected = {"kv_handover": "pulled" if pulls else "pushed", "max_batched_tokens": 512}
    assert modelled.facts | expected == modelled.facts
    assert {"gemm of the pool", "attention of the pool"} <= {row["term"] for row in modelled.coefficients}


def test_the_link_is_as_wide_as_the_side_with_fewer_devices() -> None:
    narrow, wide, wider = (
        built(system="vllm", deployment="4xh100", prefill=f"pool:{n}xh100").facts["kv_handover_bytes_per_s"]
        for n in (4, 8, 16)
    )
    assert narrow == wide == wider
    assert built(system="vllm", deployment="8xh100", prefill="pool:8xh100").facts[
        "kv_handover_bytes_per_s"
    ] == pytest.approx(2 * narrow)


def test_price_and_power_include_the_pool_of_every_instance() -> None:
    h100, h20 = device("h100"), device("h20")
    assert h100.price_usd_per_hour
    assert h20.price_usd_per_hour
    assert h100.power_w
    assert h20.power_w
    result = prepared(deployment="2xh100+4xh20", prefill="pool:4xh100", instances=2).deployment
    assert result.usd_per_hour == pytest.approx(
        2 * (6 * h100.price_usd_per_hour + 4 * h20.price_usd_per_hour)
    )
    assert result.power_w == pytest.approx(2 * (6 * h100.power_w + 4 * h20.power_w))
    counts = {part.device: part.count for part in result.describe().devices}
    assert counts == {"h100": 12, "h20": 8}


def test_a_replay_has_the_pools_rows_and_each_instances() -> None:
    request = ReplayRequest(trace="few.csv", no_out=True, system="vllm", instances=2, prefill="pool:4xh100")
    replayed = run(request).replayed
    summary = replayed.summary
    assert summary.requests.completed == 3
    assert summary.instances is not UNSET
    assert summary.instances.requests == [2, 1]
    assert summary.prompt_pool is not UNSET
    assert summary.prompt_pool.engines == 2
    assert replayed.outcome.pool is not None
    assert replayed.outcome.pool["prompt_tokens"].sum() == 1470


def test_a_pool_that_cannot_hold_the_model_is_one_sentence() -> None:
    with pytest.raises(UserError) as caught:
        built(system="vllm", deployment="4xh100", prefill="pool:2xh100")
    assert caught.value.code == "model-does-not-fit"
    assert "--prefill pool:2xh100" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("chosen", "code"),
    [
        ({"system": "h2m2", "model": "llama2-70b", "prefill": "pool:2xh100"}, "replay-flag-unused"),
        ({"prefill": "pool:2xh101"}, "catalogue-unknown-name"),
        ({"prefill": "model"}, "replay-prefill"),
        ({"instances": 2, "router": "best"}, "router-unknown"),
        ({"instances": 3, "deployment": "2xh100+4xh20,1xh100+2xh20"}, "deployment-instances"),
    ],
)
def test_what_cannot_be_prepared(chosen: dict[str, Any], code: str) -> None:
    with pytest.raises(UserError) as caught:
        prepared(**chosen)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("chosen", "code"),
    [
        ({"instances": 4}, "deployment-too-few-requests"),
        ({"instances": 2, "router": "my_failing_router:Raises"}, "router-failed"),
    ],
)
def test_what_fails_later_leaves_nothing(chosen: dict[str, Any], code: str, tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())
    with pytest.raises(UserError) as caught:
        run(ReplayRequest(trace="few.csv", directory="out", **chosen))
    assert caught.value.code == code
    # An imported module leaves its bytecode.
    assert [path for path in sorted(tmp_path.iterdir()) if path.name != "__pycache__"] == before
