"""Hosts' constants fitted to one device, and held against another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from laminabench.catalog.server_host import server_host
from laminabench.util.errors import UserError
from laminabench.workflows.validate import refit
from laminabench.workflows.validate.serving import Judged, ServerLoad


def load(model: str, device: str, prompt: int = 1024, concurrency: int = 4) -> ServerLoad:
    about = {"model": model, "device": device, "version": "0.18.0", "precision": "fp8", "fit": [1024]}
    return ServerLoad(about, "2", prompt, 1024, concurrency, 1.0, 10.0, "-")


def simple(point: ServerLoad) -> float:
    """A TTFT in ms of which the host is the most: the front end waits for each request at once."""
    host, launches = point.host, {"kimi-k2.5": "latent", "minimax-m2.5": "experts", "llama3-70b": "dense"}
    launch = getattr(host, f"launch_{launches[point.model]}_s")
    at_once = point.concurrency * host.request_serial_s
    return 1000 * (0.005 + host.request_in_s + host.out_s + at_once + 60 * launch)


@pytest.fixture
def loads(monkeypatch: Any) -> list[ServerLoad]:
    """Measured with twice the front end and half the launches on B200, and half of all that on H200."""

    def predicted(chosen: Sequence[ServerLoad], costs: str | None) -> list[Judged]:
        assert costs == "a set"
        return [Judged(each, simple(each), 10.0) for each in chosen]

    monkeypatch.setattr(refit, "judged", predicted)
    models = ("kimi-k2.5", "minimax-m2.5", "llama3-70b")
    given = [load(*of) for of in [(m, d, 1024, c) for m in models for d in ("b200", "h200") for c in (4, 64)]]
    given.append(load("llama3-70b", "h200", 8192))
    usual = server_host("0.18.0", "b200")
    measured = []
    for each in given:
        factor = 1.0 if each.device == "b200" else 0.5
        values = {
            name: factor * getattr(usual, name) * (0.5 if name.startswith("launch") else 2.0)
            for name in refit.SCALED
        }
        truth = replace(each, server={**each.server, "host": values})
        measured.append(replace(each, ttft_ms=simple(truth)))
    return measured


def test_constants_and_factors_are_those_that_were_measured(loads: list[ServerLoad]) -> None:
    result = refit.refit(loads, "b200", "a set")
    assert (result.device, result.loads) == ("b200", 6)
    # Of 60 layers' launches and the rest of the front end these loads show the sum.
    rest = sum(result.constants_ms[name] for name in ("request_in", "out"))
    for kind, launch in (("latent", 1.9), ("experts", 1.4), ("dense", 0.6)):
        both = rest + 60 * result.constants_ms[f"launch_{kind}"]
        assert both == pytest.approx(1.1 * (2 * 11.2 + 60 * launch / 2), rel=0.1)
    assert result.constants_ms["request_serial"] == pytest.approx(1.1 * 8.0, rel=0.1)
    assert result.factors == {"h200": pytest.approx(0.5, rel=0.05)}
    judges = {each["group"]: each for each in result.describe()["standings"]}
    # All of H200 but for MiniMax's loads, which are what its factor is from.
    assert judges["all"]["loads"] == 5
    assert judges["all"]["ttft"]["median"] < 5


def test_a_device_without_such_loads_is_refused(loads: list[ServerLoad]) -> None:
    with pytest.raises(UserError, match="b200, h200") as raised:
        refit.refit(loads, "a100", "a set")
    assert raised.value.code == "serving-nothing-to-fit"
