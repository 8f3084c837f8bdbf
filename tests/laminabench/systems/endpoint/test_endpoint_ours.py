"""Against our own server, with a real engine behind it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from laminabench.runs.status import DONE
from laminabench.sim.simulate import Offered
from laminabench.systems.endpoint.address import parse_url
from laminabench.systems.endpoint.replaying import replay
from laminabench.systems.endpoint.setup import Behind, EndpointSetup, Served
from laminabench.traces.table import Trace

SERVE = ("serve", "--model", "llama-tiny", "--port", "0", "--json", "-q", "--oversubscribe")


@pytest.fixture(scope="module")
def our_url() -> Iterator[str]:
    command = [sys.executable, "-m", "laminabench", *SERVE]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            assert line, f"the server ended with {process.wait()}"
            yield json.loads(line)["url"]
        finally:
            process.send_signal(signal.SIGTERM)


def test_our_server_makes_every_token_of_the_trace(our_url: str, make_trace: Callable[..., Trace]) -> None:
    trace = make_trace(requests=8, prompt=21, output=6)
    setup = EndpointSetup(Behind(parse_url(our_url)), Served("llama-tiny"))
    found = replay(trace, setup, Offered("closed", 4, None), seed=0, tell=lambda ended, made: None)
    calls, chunks = found.outcome.calls, found.outcome.chunks
    assert calls is not None
    assert chunks is not None
    assert calls["error"].tolist() == [""] * 8
    assert found.outcome.requests["status"].tolist() == [DONE] * 8
    assert np.bincount(chunks["request"], chunks["tokens"]).tolist() == [6] * 8
    assert calls["prompt_counted"].tolist() == [21] * 8
    assert not calls["even"].any()
    assert found.facts["left_out"] == []
