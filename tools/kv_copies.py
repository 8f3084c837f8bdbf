"""Measures what second copies of KV cost while decoding, and what they save when an attention worker is lost.

Contenders take turns in every round, and ratios are of the same round, so that other work cancels.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Mapping
from typing import Any

import msgspec
import torch

from lamina import Engine, Sampling
from lamina.cluster import Layout, Machine
from laminabench.calibrate.models import config_of
from laminabench.runs.manifest import host
from laminabench.util import version
from laminabench.util.host import used_s

NONE = "none"


def engine(kv_copies: str, given: argparse.Namespace, machine: Machine, *, decode_only: bool) -> Engine:
    layout = Layout(
        1,
        given.attention_workers,
        partition="requests",
        kv_copies=kv_copies,  # type: ignore[arg-type] - checked by the layout
        oversubscribe=True,
    )
    return Engine(
        config_of(given.model),
        layout=layout,
        machine=machine,
        max_sequences=given.batch,
        dtype=torch.bfloat16,
        load_format="dummy",
        decode_only=decode_only,
        kv_tokens=2 * given.batch * (given.prompt + given.output),
    )


def decoded(on: Engine, given: argparse.Namespace) -> dict[str, float]:
    """Decode a batch from its prompts' ends, whose KV is made up, to its own.

    Also where other work takes the cores, workers' processor time is their own; at one core each they spin.
    """
    pids = on.core._workers.pids  # type: ignore[union-attr] - workers of a layout
    before = sum(map(used_s, pids))
    for _ in range(given.batch):
        on.submit(given.prompt, Sampling(max_tokens=given.output, ignore_eos=True))
    began, tokens = time.monotonic(), given.batch * given.output
    on.run()
    took = time.monotonic() - began
    return {
        "tokens_per_s": tokens / took,
        "tokens_per_processor_s": tokens / (sum(map(used_s, pids)) - before),
    }


def recovery(on: Engine, given: argparse.Namespace) -> dict[str, float]:
    """Kill an attention worker that has its share of the batch; seconds until all batches have new tokens."""
    generator = torch.Generator().manual_seed(1)
    numbers = []
    for _ in range(given.batch):
        text = torch.randint(1, 1000, (given.prompt,), generator=generator).tolist()
        numbers.append(on.submit(text, Sampling(max_tokens=given.output, ignore_eos=True)))
    running = 0
    while running < given.batch:
        running += len(on.step().joined)
    usual = []
    for _ in range(given.output // 2):
        began = time.monotonic()
        on.step()
        usual.append(time.monotonic() - began)
    began, batches = time.monotonic(), set()
    on.inject_fault("attention 0")
    while len(batches) < on.core.batches or not on.faults:
        batches.add(on.step().batch)
    took = time.monotonic() - began
    fault = on.faults.pop()
    for number in numbers:
        on.cancel(number)
    while not on.idle:
        on.step()
    return {
        "interruption_s": took,
        "iteration_s": statistics.median(usual),
        "requests_computed_again": fault.requests,
        "kv_tokens_computed_again": fault.kv_tokens,
    }


def ratios(rounds: list[Mapping[str, float]], over: str) -> dict[str, Any]:
    """Return each contender's ratios to another one's, by round."""
    result = {}
    for name in rounds[0]:
        each = [one[name] / one[over] for one in rounds]
        result[name] = {"median": statistics.median(each), "min": min(each), "max": max(each)}
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="llama-mini")
    parser.add_argument("--copies", default="host", help="such as host,disk, or worker")
    parser.add_argument("--attention-workers", type=int, default=1)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--prompt", type=int, default=256)
    parser.add_argument("--output", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--recoveries", type=int, default=3)
    given = parser.parse_args()
    contenders = (NONE, *given.copies.split(","))
    with Machine() as machine:
        decoding = {name: engine(name, given, machine, decode_only=True) for name in contenders}
        for one in decoding.values():
            decoded(one, given)  # touches all memory
        speeds = [
            {name: decoded(decoding[name], given) for name in _turns(contenders, number)}
            for number in range(given.rounds)
        ]
        for one in decoding.values():
            one.close()
        computing = {name: engine(name, given, machine, decode_only=False) for name in contenders}
        recoveries = [
            {name: recovery(computing[name], given) for name in _turns(contenders, number)}
            for number in range(given.recoveries)
        ]
        for one in computing.values():
            one.close()
    interruptions = [{name: one["interruption_s"] for name, one in each.items()} for each in recoveries]
    result = {
        "options": vars(given),
        "version": version.describe(),
        "host": msgspec.to_builtins(host()),
        "decoded": speeds,
        "over_none": {
            what: ratios([{name: one[what] for name, one in each.items()} for each in speeds], NONE)
            for what in speeds[0][NONE]
        },
        "recoveries": recoveries,
        "none_over_interruption": {
            name: statistics.median(one[NONE] / one[name] for one in interruptions) for name in contenders
        },
    }
    print(json.dumps(result, indent=2))


def _turns(contenders: tuple[str, ...], number: int) -> tuple[str, ...]:
    """Return the order of a round: every other one is reversed."""
    return contenders if number % 2 == 0 else contenders[::-1]


if __name__ == "__main__":
    main()
