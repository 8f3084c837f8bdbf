"""The client's benchmark: that it measures what it says. How fast this machine is, no test can know."""

from __future__ import annotations

import pytest

from laminabench.bench.endpoint import Load, run
from laminabench.bench.endpoint_server import Pace, pieces


def test_all_that_was_offered_is_counted() -> None:
    loads = [Load(100.0, 0.5, 8, 10, each, 0.005) for each in (1, 5)]
    result = run(loads, workers=1)
    for load, row in zip(loads, result["loads"], strict=True):
        assert (row["requests"], row["failed"]) == (50, 0)
        assert row["lateness_ms"]["p50"] <= row["lateness_ms"]["p99"] <= row["lateness_ms"]["max"]
        assert row["client_cpu_us_per_chunk"] > 0
        assert row["server_cpu_us_per_chunk"] >= 0
        assert row["offered_tokens_per_s"] == load.requests_per_s * 10
    assert result["met"] == all(row["met"] for row in result["loads"])


@pytest.mark.parametrize("tokens", [1, 5])
def test_the_mock_server_says_what_it_has_made(tokens: int) -> None:
    made = pieces(Pace(3, tokens, 0.01))
    assert made[0].startswith(b"HTTP/1.1 200 OK\r\n")
    assert f'"completion_tokens":{3 * tokens}}}'.encode() in made[2]
    assert made[2].endswith(b"0\r\n\r\n")
