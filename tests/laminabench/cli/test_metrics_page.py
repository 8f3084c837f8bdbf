"""docs/metrics.md names every key that a replay prints: it cannot go stale unnoticed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from laminabench.compare.metrics import BY_NAME

DOCS = Path(__file__).parents[3] / "docs"
# Described elsewhere, as what they are about differs from system to system.
APART = ("facts", "trace")
# Of pools of workers, which differ between systems too.
POOLS = {"model", "attention", "devices", "replicas"}


def keys(found: Any) -> Iterator[str]:
    if isinstance(found, dict):
        for name, inner in found.items():
            yield name
            if name not in APART:
                yield from keys(inner)


def named(page: str) -> set[str]:
    """Every word in backticks."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return {word for quoted in re.findall(r"`([^`\n]+)`", text) for word in re.findall(r"[\w.]+", quoted)}


def test_every_key_of_a_replay_is_on_the_page(shell: Any, as_json: Callable[..., dict[str, Any]]) -> None:
    del shell  # it has changed the folder
    Path("few.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,50,40\n1,90,30\n")
    for system in ("lamina", "vllm"):
        facts = as_json("replay", "--trace", "few.csv", "--system", system, "--no-out", "-q")
        page = {part for word in named("metrics.md") for part in (word, *word.split("."))}
        assert set(keys(facts)) - page - POOLS == set()


def test_every_metric_of_a_gate_is_on_its_page() -> None:
    assert BY_NAME.keys() - named("compare.md") == set()
