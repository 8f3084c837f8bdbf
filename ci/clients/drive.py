"""Drive the clients, four others and ours: how each gets the load, and where its numbers are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from load import Load, Reported
from small_model import VOCABULARY

HERE = Path(__file__).parent
CACHED = "local/small"  # the tokenizer's name in the cache of Hugging Face
LIMIT_S = 300
# Words of the tokenizer's language.
PROMPT = "rin tola besu kamedi foru gina sita mode lapi naruzo tevi dumasa pelo kino"


class ClientError(Exception):
    """A client that failed; the message ends with its last output."""


@dataclass(frozen=True)
class Place:
    """Environment of the clients: the server's address, the model's folder, a work folder, and Pythons."""

    url: str
    model: str
    folder: Path  # with the model's config and tokenizer
    home: Path
    clients: Path
    vllm: Path | None

    def run(self, name: str, command: Sequence[object]) -> str:
        """Return the command's output. Nothing is looked up on a network, or reported to anybody."""
        environment = os.environ | {
            "HOME": str(self.home),
            "HF_HOME": str(self.home),
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "DO_NOT_TRACK": "1",
            "VLLM_NO_USAGE_STATS": "1",
        }
        try:
            done = subprocess.run(
                [str(word) for word in command],
                cwd=self.home,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise ClientError(f"{name} was not done after {LIMIT_S} s") from error
        if done.returncode:
            raise ClientError(f"{name} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-3000:]}")
        return done.stdout


def openai(place: Place, load: Load) -> Reported:
    """Return the openai package; the loop around it is ours, and so are the numbers."""
    order = vars(load) | {"url": place.url, "model": place.model, "prompt": PROMPT}
    reported = json.loads(place.run("openai", [place.clients, HERE / "openai_load.py", json.dumps(order)]))
    return Reported(
        "openai",
        reported["requests"],
        reported["prompt_tokens"],
        reported["output_tokens"],
        ("(last - first) / (tokens - 1)", reported["token_gap_ms"]),
        ("gap of chunks", reported["chunk_gap_ms"]),
        reported["ttft_ms"],
        reported["throughput_tokens_per_s"],
    )


def vllm(place: Place, load: Load) -> Reported:
    """`vllm bench serve`, on /v1/completions."""
    flags = {
        "backend": "openai",
        "base-url": place.url,
        "endpoint": "/v1/completions",
        "model": place.model,
        "tokenizer": place.folder,
        "dataset-name": "random",
        "random-input-len": load.prompt_tokens,
        "random-output-len": load.output_tokens,
        "num-prompts": load.requests,
        "max-concurrency": load.concurrency,
        "result-dir": place.home,
        "result-filename": "vllm.json",
    }
    switches = ["--ignore-eos", "--save-result", "--save-detailed", "--disable-tqdm"]
    assert place.vllm is not None
    place.run("vllm bench serve", [place.vllm, HERE / "vllm_bench.py", *_written(flags), *switches])
    reported = json.loads((place.home / "vllm.json").read_text())
    if reported["failed"]:
        raise ClientError(f"vllm bench serve: {reported['failed']} requests failed")
    return Reported(
        "vllm bench serve",
        reported["completed"],
        reported["total_input_tokens"],
        reported["total_output_tokens"],
        ("mean TPOT", reported["mean_tpot_ms"]),
        ("mean ITL", reported["mean_itl_ms"]),
        reported["mean_ttft_ms"],
        reported["output_throughput"],
    )


def aiperf(place: Place, load: Load) -> Reported:
    """aiperf, on /v1/completions, with the server's counts of tokens. It looks at our /metrics too."""
    artifacts = place.home / "aiperf"
    flags = {
        "model": place.model,
        "url": place.url,
        "tokenizer": CACHED,
        "endpoint-type": "completions",
        "request-count": load.requests,
        "concurrency": load.concurrency,
        "synthetic-input-tokens-mean": load.prompt_tokens,
        "synthetic-input-tokens-stddev": 0,
        "output-tokens-mean": load.output_tokens,
        "output-tokens-stddev": 0,
        "extra-inputs": "ignore_eos:true",
        "random-seed": 1,
        "output-artifact-dir": artifacts,
        "ui": "none",
    }
    switches = ["--streaming", "--use-server-token-count", "--no-gpu-telemetry"]
    place.run("aiperf", [place.clients.with_name("aiperf"), "profile", *_written(flags), *switches])
    reported: dict[str, dict[str, Any]] = json.loads((artifacts / "profile_export_aiperf.json").read_text())
    return Reported(
        "aiperf",
        int(reported["request_count"]["avg"]),
        int(reported["total_isl"]["avg"]),
        int(reported["total_osl"]["avg"]),
        ("inter token latency", reported["inter_token_latency"]["avg"]),
        ("inter chunk latency", reported["inter_chunk_latency"]["avg"]),
        reported["time_to_first_token"]["avg"],
        reported["output_token_throughput"]["avg"],
    )


def guidellm(place: Place, load: Load) -> Reported:
    """guidellm, on /v1/chat/completions."""
    report = place.home / "guidellm.json"
    flags = {
        "backend": f"kind=openai_http,target={place.url},model={place.model}",
        "profile": f"kind=concurrent,streams={load.concurrency}",
        "constraint": f"kind=max_requests,count={load.requests}",
        "tokenizer": f"kind=hf_auto,model={place.folder}",
        "data": f"kind=synthetic_text,prompt_tokens={load.prompt_tokens},output_tokens={load.output_tokens}",
        "output": f"kind=json,path={report}",
    }
    program = place.clients.with_name("guidellm")
    place.run("guidellm", [program, "run", *_written(flags), "--disable-console"])
    benchmark = json.loads(report.read_text())["benchmarks"][0]
    reported, state = benchmark["metrics"], benchmark["scheduler_state"]
    if state["successful_requests"] != state["processed_requests"]:
        raise ClientError(f"guidellm: {state['errored_requests']} requests failed")

    def mean(name: str) -> float:
        return float(reported[name]["successful"]["mean"])

    def total(name: str) -> int:
        return int(reported[name]["successful"]["total_sum"])

    return Reported(
        "guidellm",
        reported["request_totals"]["successful"],
        total("prompt_token_count"),
        total("output_token_count"),
        ("ITL", mean("inter_token_latency_ms")),
        None,
        mean("time_to_first_token_ms"),
        mean("output_tokens_per_second"),
    )


def replayer(place: Place, load: Load) -> Reported:
    """`laminabench replay` of a trace of such requests, with token ids."""
    # Of laminabench's own environment, which runs this.
    from laminabench.systems.live.endpoint.probe import OUTPUT_TOKENS, PROMPT_TOKENS

    trace = place.home / "load.csv"
    row = f"0,{load.prompt_tokens},{load.output_tokens}\n"
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n" + row * load.requests)
    flags = {
        "system": "openai",
        "url": place.url,
        "model": place.model,
        "trace": trace,
        "vocab": VOCABULARY,
        "mode": "closed",
        "concurrency": load.concurrency,
        "warm-up": 0,
    }
    switches = ["--no-out", "--json"]
    command = [sys.executable, "-m", "laminabench", "replay", *_written(flags), *switches]
    reported = json.loads(place.run("laminabench replay", command))
    counted = reported["counted"]
    # And the one request with which it finds out what the server takes.
    return Reported(
        "laminabench replay",
        reported["requests"]["completed"] + 1,
        counted["prompt_tokens"]["said"] + PROMPT_TOKENS,
        counted["completion_tokens"]["said"] + OUTPUT_TOKENS,
        ("TBT, whole run", reported["whole_run"]["tbt_ms"]["mean"]),
        ("ITL, a gap of chunks", reported["itl_ms"]["mean"]),
        reported["ttft_ms"]["mean"],
        reported["whole_run"]["throughput_tokens_per_s"],
    )


CLIENTS = {
    "openai": openai,
    "vllm": vllm,
    "aiperf": aiperf,
    "guidellm": guidellm,
    "replay": replayer,
}


def _written(flags: dict[str, object]) -> list[str]:
    return [word for name, value in flags.items() for word in (f"--{name}", str(value))]
