"""The client's benchmark: that it measures what it says. How fast this machine is, no test can know."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from laminabench.bench.endpoint_server import Pace, pieces


def test_all_that_was_offered_is_counted(facts: Callable[..., dict[str, Any]]) -> None:
    result = facts("endpoint", "--request-rate", "100", "--seconds", "1", "--prompt-tokens", "8",
                   "--output-tokens", "10", "--gap-ms", "5")  # fmt: skip
    assert [row["tokens_a_chunk"] for row in result["loads"]] == [1, 5]
    for row in result["loads"]:
        assert (row["requests"], row["failed"]) == (100, 0)
        assert row["lateness_ms"]["p50"] <= row["lateness_ms"]["p99"] <= row["lateness_ms"]["max"]
        assert row["client_cpu_us_per_chunk"] > 0
        assert row["server_cpu_us_per_chunk"] >= 0
        assert row["offered_tokens_per_s"] == 1000
    assert result["met"] == all(row["met"] for row in result["loads"])


@pytest.mark.parametrize("tokens", [1, 5])
def test_the_mock_server_says_what_it_has_made(tokens: int) -> None:
    made = pieces(Pace(3, tokens, 0.01))
    assert made[0].startswith(b"HTTP/1.1 200 OK\r\n")
    assert f'"completion_tokens":{3 * tokens}}}'.encode() in made[2]
    assert made[2].endswith(b"0\r\n\r\n")
