"""Against vLLM's own server, where its environment is there."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from laminabench.catalog.find_model import to_hf_config
from laminabench.runs.status import DONE
from laminabench.sim.simulate import Offered
from laminabench.systems.live.endpoint.replaying import replay
from laminabench.systems.live.endpoint.setup import Behind, EndpointSetup, Served, parse_url
from laminabench.traces.table import Trace

START_S = 240.0
SERVER = ("-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1", "--served-model-name", "tiny")
OPTIONS = ("--load-format", "dummy", "--skip-tokenizer-init", "--enforce-eager", "--max-model-len", "2048")


@pytest.fixture(scope="module")
def vllm_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    python = os.environ.get("LAMINABENCH_VLLM")
    if not python:
        pytest.skip("set LAMINABENCH_VLLM to the Python of `laminabench baseline setup vllm` to run this")
    folder = tmp_path_factory.mktemp("vllm")
    (folder / "config.json").write_text(json.dumps(to_hf_config("llama-tiny", 2048)))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    quiet = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    environment = os.environ | quiet | {"VLLM_CPU_KVCACHE_SPACE": "1"}
    command = [python, *SERVER, *OPTIONS, "--model", str(folder), "--port", str(port)]
    log = folder / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=out, env=environment, cwd=folder, start_new_session=True
        )
        try:
            url = f"http://127.0.0.1:{port}"
            _wait_for(url, process, log)
            yield url
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(60)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()


def _wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until it answers; it does not announce that."""
    until = time.monotonic() + START_S
    while time.monotonic() < until and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    pytest.fail(f"vLLM's server does not answer:\n{log.read_text(errors='replace')[-3000:]}")


def test_vllm_gets_the_trace_and_makes_every_token_of_it(
    vllm_url: str, make_trace: Callable[..., Trace]
) -> None:
    trace = make_trace(requests=12, prompt=33, output=7, blocks=[[1, 2, number] for number in range(12)])
    setup = EndpointSetup(Behind(parse_url(vllm_url)), Served("tiny"))
    result = replay(trace, setup, Offered("closed", 4, None), seed=0)
    calls, chunks = result.outcome.calls, result.outcome.chunks
    assert calls["error"].tolist() == [""] * 12
    assert result.outcome.requests["status"].tolist() == [DONE] * 12
    assert np.bincount(chunks["request"], chunks["tokens"]).tolist() == [7] * 12
    assert calls["prompt_counted"].tolist() == [33] * 12
    assert calls["completion_counted"].tolist() == [7] * 12
    assert not calls["even"].any()
    # The folder of the model is here, so its vocabulary is known; and nothing had to be left out.
    facts = {name: result.facts[name] for name in ("vocab", "left_out", "tokens_in_chunks_by")}
    assert facts == {"vocab": 1024, "left_out": [], "tokens_in_chunks_by": "usage"}
