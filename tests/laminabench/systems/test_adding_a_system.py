"""The system that docs/adding-a-system.md adds can be replayed, planned with and compared."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path

import pytest

from laminabench.catalog.find_model import model
from laminabench.catalog.hardware import device
from laminabench.systems.registry import MODULES, colours, deployments, marker, system
from laminabench.util.errors import UserError
from laminabench.workflows.replay import ReplayRequest, run

PAGE = Path(__file__).parents[3] / "docs" / "adding-a-system.md"
REQUEST = {"trace": "azure-code", "offline": True, "num_requests": 100, "no_out": True}


@pytest.fixture(autouse=True)
def _added(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    code = max(blocks, key=len)
    assert len(code.splitlines()) < 80
    module = types.ModuleType("its_package")
    exec(compile(code, str(PAGE), "exec"), module.__dict__)
    monkeypatch.setitem(sys.modules, "its_package", module)
    monkeypatch.setitem(MODULES, "roofline", "its_package")


def test_it_is_replayed_and_is_faster_than_a_real_one() -> None:
    result = run(ReplayRequest(system="roofline", **REQUEST))
    real = run(ReplayRequest(system="vllm", **REQUEST))
    assert str(result.prepared.deployment) == "4xh100"
    assert result.replayed.summary.requests.completed == 100
    assert result.replayed.summary.throughput_tokens_per_s > real.replayed.summary.throughput_tokens_per_s


def test_flags_of_others_are_refused() -> None:
    with pytest.raises(UserError, match="replay-flag-unused"):
        run(ReplayRequest(system="roofline", batches=3, **REQUEST))
    with pytest.raises(UserError, match="deployment-not-for-system"):
        run(ReplayRequest(system="roofline", deployment="1xh2m2", **REQUEST))


def test_plots_show_it_as_it_says() -> None:
    assert colours()["roofline"] == colours(page=True)["roofline"] == "#cc79a7"
    assert marker("roofline") == "x"


def test_a_plan_finds_its_deployments() -> None:
    results = list(deployments("roofline", model("llama3-70b"), [device("h100"), device("h2m2")]))
    assert {str(each) for each in results} == {"1xh100", "2xh100", "4xh100", "8xh100"}
    assert system("roofline").MOST_BATCHES == 1
