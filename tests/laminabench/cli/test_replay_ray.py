"""`laminabench replay --ray`: workers as actors of a real cluster of two nodes, on the loopback address."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

AsJson = Callable[..., dict[str, Any]]
Shell = Callable[..., tuple[int, str, str]]


def flags(folder: Path, model: dict[str, Any]) -> list[str]:
    config = folder / "config.json"
    config.write_text(json.dumps(model))
    return [
        *("replay", "--trace", "azure-code", "--offline", "--num-requests", "20", "--scale-lengths", "0.1"),
        *("--backend", "live", "--model", str(config), "--prefill", "model", "--no-out", "-q"),
    ]


@pytest.mark.usefixtures("shared_machine")
def test_the_same_tokens_as_on_one_machine(
    as_json: AsJson, ray_cluster: Any, tmp_path: Path, exact_model: dict[str, Any]
) -> None:
    call = flags(tmp_path, exact_model)
    here = as_json(*call)
    there = as_json(*call, "--ray", ray_cluster.address, "--chaos", "attention:0@tokens=5")
    assert there["facts"]["ray"] == ray_cluster.address
    assert here["facts"]["ray"] is None
    assert there["tokens_sha256"] == here["tokens_sha256"]
    assert there["requests"] == here["requests"]
    assert [fault["workers"] for fault in there["faults"]] == [["attention 0"]]


def test_a_cluster_that_is_not_there(shell: Shell, tmp_path: Path, exact_model: dict[str, Any]) -> None:
    code, _, err = shell(*flags(tmp_path, exact_model), "--ray", "127.0.0.1:1")
    assert code == 2
    assert "127.0.0.1:1" in err


def test_it_is_for_live_replays(shell: Shell) -> None:
    code, _, err = shell("replay", "--trace", "azure-code", "--ray", "auto")
    assert code == 2
    assert "--ray is for live lamina" in err
