"""Decode steps of vLLM's CPU build, prefill stripped out: orders on stdin, their times on stdout, as JSON.

Run by the Python of the environment that `laminabench baseline setup vllm` makes, never by laminabench's:

    VLLM_PYTHON decode_steps.py MODEL \\
        --batch-max 64 --max-model-len 1152 --kv-bytes 1300000000

MODEL is a folder with a config.json; its weights are made up, bfloat16. vLLM is loaded once. Then stdout
carries one JSON object a line and nothing else (vLLM's log goes to stderr):

    {"ready": true, "versions": {...}, "cores": [0, 1], ...}                   once
    {"batch": 64, "prompt_tokens": 1024, "output_tokens": 64}                  an order, on stdin
    {"batch": 64, "prompt_tokens": 1024, "output_tokens": 64, "seconds": 7.8, "tokens": 4096,
     "steps": [0.12, ...], "first_step_s": 0.13}                               its answer
    {"error": "one sentence"}                                                  or that

After an order it refuses, it takes the next one. When vLLM itself fails, the error line is the last and the
exit code 1. The end of stdin ends it with code 0.

What is decoded: `batch` requests that join together, each with a prompt of `prompt_tokens` tokens, of whose
KV vLLM's DecodeBenchConnector says that it is there already: the whole cache is filled once, with a constant,
at start-up. No request shares a block with another. Each generates `output_tokens` + 1 tokens: one in the
first step, which admits the requests and is not counted (`first_step_s`), and one in each of the
`output_tokens` steps that are. In every one of them all requests decode, which is checked; in the n-th, each
attends to `prompt_tokens` + n tokens.

In the time of a step, `LLMEngine.step()`: scheduling, preparing inputs, the model, the head's logits, greedy
sampling, one output object a request, and in the last step freeing the requests. Not in it: prefill, adding
and admitting requests, tokenizer and detokenizer, HTTP, and the hop between processes: engine and worker are
this one process (vLLM's own servers keep them apart).
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import math
import os
import platform
import sys
import time
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Protocol, TextIO

_BOUND = "LAMINABENCH_VLLM_BOUND"
_DECODE_ONLY = {
    "kv_connector": "DecodeBenchConnector",
    "kv_role": "kv_both",
    # One constant, written at start-up: what a request finds costs its first step nothing.
    "kv_connector_extra_config": {"fill_mean": 0.015, "fill_std": 0.0, "startup_fill": True},
}


class OrderError(Exception):
    """An order that is not carried out, and why, in one sentence."""


@dataclass(frozen=True)
class Limits:
    """What an engine that is loaded has room for."""

    batch_max: int
    max_model_len: int
    block_tokens: int
    blocks: int


@dataclass(frozen=True)
class Order:
    """So many requests, so long, decoded together for so many steps."""

    batch: int
    prompt_tokens: int
    output_tokens: int

    @property
    def generated(self) -> int:
        """Tokens a request is asked for: the step in which it joins gives one that is not counted."""
        return self.output_tokens + 1

    @classmethod
    def parse(cls, line: str, limits: Limits) -> Order:
        """The order on this line; an OrderError unless it can be carried out without preemption."""
        try:
            given = json.loads(line)
        except ValueError as error:
            raise OrderError(f"the order is no JSON: {error}") from None
        names = list(cls.__dataclass_fields__)
        if not isinstance(given, dict) or sorted(given) != sorted(names):
            raise OrderError(f"an order is an object with {', '.join(names)} and nothing else")
        for name, value in given.items():
            if type(value) is not int or value < 1:
                raise OrderError(f"{name} is {json.dumps(value)}, which is no whole number from 1")
        order = cls(**given)
        order._check(limits)
        return order

    def _check(self, limits: Limits) -> None:
        if self.batch > limits.batch_max:
            raise OrderError(f"a batch of {self.batch} is more than --batch-max {limits.batch_max}")
        longest = self.prompt_tokens + self.generated
        if longest > limits.max_model_len:
            raise OrderError(
                f"{self.prompt_tokens} prompt and {self.generated} generated tokens (one is not counted) are "
                f"more than --max-model-len {limits.max_model_len}"
            )
        # The last token generated leaves no KV.
        blocks = self.batch * math.ceil((longest - 1) / limits.block_tokens)
        if blocks > limits.blocks:
            raise OrderError(
                f"{blocks} blocks of {limits.block_tokens} tokens are needed, and --kv-bytes gives "
                f"{limits.blocks}"
            )


class Decoder(Protocol):
    """What carries out orders."""

    limits: Limits

    def decode(self, order: Order) -> dict[str, Any]: ...


def serve(decoder: Decoder, orders: Iterable[str], answers: TextIO) -> None:
    """Answer each line until there are no more. An empty one is passed over."""
    for line in orders:
        if not line.strip():
            continue
        try:
            answer = decoder.decode(Order.parse(line, decoder.limits))
        except OrderError as error:
            answer = {"error": str(error)}
        say(answers, answer)


def say(answers: TextIO, answer: dict[str, Any]) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


class VllmDecoder:
    """vLLM in this process, its prefill replaced by a KV cache that is said to be filled."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        from vllm import SamplingParams
        from vllm.config import KVTransferConfig
        from vllm.engine.arg_utils import EngineArgs
        from vllm.sampling_params import RequestOutputKind
        from vllm.v1.engine.llm_engine import LLMEngine

        self._sampling = SamplingParams
        self._each_token = RequestOutputKind.DELTA
        self._engine = LLMEngine.from_engine_args(
            EngineArgs(
                model=str(arguments.model),
                load_format="dummy",
                dtype="bfloat16",
                skip_tokenizer_init=True,
                generation_config="vllm",
                max_num_seqs=arguments.batch_max,
                # A step schedules one token a request.
                max_num_batched_tokens=arguments.batch_max,
                max_model_len=arguments.max_model_len,
                kv_cache_memory_bytes=arguments.kv_bytes,
                enable_prefix_caching=False,
                disable_log_stats=True,
                kv_transfer_config=KVTransferConfig(**_DECODE_ONLY),
            )
        )
        cache = self._engine.vllm_config.cache_config
        # vLLM keeps one block for itself.
        self.limits = Limits(
            arguments.batch_max, arguments.max_model_len, cache.block_size, cache.num_gpu_blocks - 1
        )
        self._added = 0

    def decode(self, order: Order) -> dict[str, Any]:
        sampling = self._sampling(
            temperature=0.0,
            max_tokens=order.generated,
            ignore_eos=True,
            detokenize=False,
            output_kind=self._each_token,
        )
        for _ in range(order.batch):
            prompt = {"prompt_token_ids": [1] * order.prompt_tokens}
            self._engine.add_request(str(self._added), prompt, sampling)
            self._added += 1
        first = self._timed_step(order.batch)
        steps = [self._timed_step(order.batch) for _ in range(order.output_tokens)]
        if self._engine.has_unfinished_requests():
            raise RuntimeError("vLLM goes on with requests that have all their tokens")
        return {
            "batch": order.batch,
            "prompt_tokens": order.prompt_tokens,
            "output_tokens": order.output_tokens,
            "seconds": sum(steps),
            "tokens": order.batch * order.output_tokens,
            "steps": steps,
            "first_step_s": first,
        }

    def _timed_step(self, batch: int) -> float:
        started = time.perf_counter()
        outputs = self._engine.step()
        took = time.perf_counter() - started
        generated = [len(output.outputs[0].token_ids) for output in outputs]
        if generated != [1] * batch:
            raise RuntimeError(f"a step generated {sum(generated)} tokens for {batch} requests")
        return took

    def close(self) -> None:
        self._engine.engine_core.shutdown()


def main(argv: Sequence[str]) -> int:
    """This program, after its threads are bound to their cores."""
    arguments = _parser().parse_args(argv)
    if not (arguments.model / "config.json").is_file():
        _parser().error(f"{arguments.model} has no config.json")
    cores = _cores(arguments)
    if os.environ.get(_BOUND) is None:
        _restart(argv, cores)
    os.sched_setaffinity(0, cores)
    # vLLM, and what it loads, write to stdout as they like.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    try:
        started = time.perf_counter()
        decoder = VllmDecoder(arguments)
        say(answers, _ready(decoder, cores, time.perf_counter() - started))
        serve(decoder, sys.stdin, answers)
        decoder.close()
    except BrokenPipeError:
        return 1  # nobody listens any more
    except Exception as error:
        traceback.print_exc()
        why = (str(error).strip() or "no reason given").splitlines()[0]
        say(answers, {"error": f"vLLM failed: {type(error).__name__}: {why}"})
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="decode_steps.py", description="Time decode steps of vLLM on a CPU."
    )
    parser.add_argument("model", type=Path, help="a folder with a config.json")
    parser.add_argument("--batch-max", type=_count, required=True, help="most requests decoded together")
    parser.add_argument("--max-model-len", type=_count, required=True, help="longest prompt and output")
    parser.add_argument("--kv-bytes", type=_count, required=True, help="size of the KV cache")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--cores", type=_core_list, help="cores to bind a thread each to, as 0,2-3")
    where.add_argument("--threads", type=_count, help="so many, on the first cores (default: one a core)")
    return parser


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1")
    return int(text)


def _core_list(text: str) -> list[int]:
    cores: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise argparse.ArgumentTypeError(f"{text!r} is no list of cores, as 0,2-3")
        cores.extend(range(int(first), int(last or first) + 1))
    if not cores or len(set(cores)) < len(cores):
        raise argparse.ArgumentTypeError(f"{text!r} names a core twice, or none")
    return cores


def _cores(arguments: argparse.Namespace) -> list[int]:
    """The cores asked for, all of which this process may run on."""
    allowed = sorted(os.sched_getaffinity(0))
    wanted: list[int] = arguments.cores or allowed[: arguments.threads]
    missing = sorted(set(wanted) - set(allowed))
    if missing:
        _parser().error(f"core {missing[0]} of --cores is not among those it may run on: {allowed}")
    if len(wanted) < (arguments.threads or 0):
        _parser().error(f"--threads {arguments.threads} is more than the {len(allowed)} cores it may run on")
    return wanted


def _restart(argv: Sequence[str], cores: Sequence[int]) -> NoReturn:
    """Start again, with OpenMP told before it is loaded what vLLM tells the workers it starts itself.

    vLLM does so (vllm/utils/ompmultiprocessing.py) only where a worker is a process of its own; its
    VLLM_CPU_OMP_THREADS_BIND has no effect on an engine in one process. Intel's OpenMP is the one its manual
    says to preload.
    """
    library = Path(sys.prefix) / "lib" / "libiomp5.so"
    if not library.is_file():
        _parser().error(
            f"{library} is missing: run it with the Python of its environment, that of `baseline setup vllm`"
        )
    preloaded = [str(library), *filter(None, [os.environ.get("LD_PRELOAD")])]
    environment = {
        # The cache of compiled models goes when the environment does.
        "VLLM_CACHE_ROOT": str(Path(sys.prefix) / "cache"),
        # The CPU build of 0.32 cannot load a model that it has compiled ahead and kept.
        "VLLM_USE_AOT_COMPILE": "0",
        **os.environ,
        _BOUND: "1",
        "LD_PRELOAD": ":".join(preloaded),
        "OMP_NUM_THREADS": str(len(cores)),
        "KMP_AFFINITY": f"granularity=fine,explicit,proclist=[{','.join(map(str, cores))}]",
        "KMP_BLOCKTIME": "5",
        "KMP_TPAUSE": "0",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        # Nothing is fetched and nothing is reported.
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_HOST_IP": "127.0.0.1",
    }
    os.execve(sys.executable, [sys.executable, str(Path(__file__).resolve()), *argv], environment)


def _ready(decoder: VllmDecoder, cores: list[int], startup_s: float) -> dict[str, Any]:
    limits = decoder.limits
    packages = {"vllm": "vllm-cpu", "torch": "torch", "transformers": "transformers"}
    return {
        "ready": True,
        "versions": {
            **{name: importlib.metadata.version(package) for name, package in packages.items()},
            "python": platform.python_version(),
        },
        "cores": cores,
        "kv_tokens": limits.blocks * limits.block_tokens,
        "block_tokens": limits.block_tokens,
        "startup_s": startup_s,
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
