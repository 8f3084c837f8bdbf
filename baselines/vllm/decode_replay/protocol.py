"""The protocol of the runner's stdin and stdout: an order, and lines of JSON."""

from __future__ import annotations

import json
import re
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, TextIO

from .watch import Step

# A line comes at least that often, which shows that the runner is alive.
EVERY_S = 0.25
# Of an order, what may be others in the next replay.
REQUESTS = {"prompt_tokens", "output_tokens", "prompts"}
_OF_INTEREST = ("VLLM_", "OMP_", "KMP_", "GOMP_", "LD_PRELOAD", "CUDA_", "NCCL_", "TORCH", "PYTORCH_", "HF_")
# HF_TOKEN and VLLM_API_KEY are secrets; a number of TOKENS is none.
_SECRET = re.compile(r"KEY|TOKEN(?!S)|SECRET|PASSW|CREDENTIAL")
_IN_ADDRESS = re.compile(r"//[^/@\s]*@")


@dataclass(frozen=True)
class Order:
    """The first line on stdin: how vLLM is set up, and which requests come when.

    It was checked before it was written: this is no interface for people.
    """

    model: str  # a folder with a config.json
    load_format: str  # "dummy" makes weights up; "auto" reads them
    dtype: str
    tensor_parallel: int
    max_num_seqs: int
    max_model_len: int
    block_size: int | None  # None: vLLM's own
    kv_bytes: int | None  # of all workers together; None: what vLLM chooses
    gpu_memory_utilization: float | None
    enforce_eager: bool
    cores: Sequence[int]  # that its threads may run on
    mode: str  # saturate, open or closed
    concurrency: int
    prompt_tokens: Sequence[int]
    output_tokens: Sequence[int]
    # A file with the token ids of all prompts, one after another, as this machine's integers of 32 bits: vLLM
    # computes them, and nothing of it is changed. None: their KV is made up.
    prompts: str | None
    # With `prompts`; None: vLLM's own.
    max_batched_tokens: int | None
    prefix_caching: bool | None
    arrival_s: Sequence[float]  # empty but in open mode

    @classmethod
    def parse(cls, line: str) -> Order:
        """Parse the order on this line; raise a ValueError if it is none."""
        given: Any = json.loads(line)
        if not isinstance(given, dict) or set(given) != set(cls.__dataclass_fields__):
            raise ValueError(f"an order has {', '.join(cls.__dataclass_fields__)} and nothing else")
        return cls(**given)

    def again(self, line: bytes) -> Order:
        """Return the same order, or with the requests on this line; raise a ValueError for anything else."""
        if not line.strip():
            return self
        given: Any = json.loads(line)
        if not isinstance(given, dict) or set(given) != REQUESTS:
            raise ValueError(f"another replay has {', '.join(sorted(REQUESTS))} and nothing else")
        return replace(self, **given)

    def __len__(self) -> int:
        return len(self.prompt_tokens)

    def read_prompts(self) -> list[array[int]]:
        """Return the token ids of each row's prompt."""
        assert self.prompts is not None
        ids = array("I", Path(self.prompts).read_bytes())
        return [ids[first:end] for first, end in pairwise(accumulate(self.prompt_tokens, initial=0))]


class EventWriter:
    """A writer of JSON lines. Events wait, in order, to share a line, so that they cost next to nothing."""

    def __init__(self, stream: TextIO, now: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._now = stream, now
        self._events: list[Sequence[object]] = []
        self._written_s = now()

    def write(self, **line: object) -> None:
        """Write a line at once, after the events that wait."""
        self.flush()
        self._write(line)

    def arrived(self, row: int, at_s: float, why_not: str | None) -> None:
        """Report that a request was submitted, or why it can never be served."""
        self._events.append(("a", row, at_s, why_not))

    def stepped(self, start_s: float, end_s: float, step: Step) -> None:
        """Report that a step was made."""
        self._events.append(("s", start_s, end_s, *step))

    def flush_if_due(self) -> None:
        """Write the events that have waited long enough; also none, as a sign of life."""
        if self._now() - self._written_s >= EVERY_S:
            self.flush(even_none=True)

    def flush(self, even_none: bool = False) -> None:
        if self._events or even_none:
            self._write({"events": self._events})
            self._events = []

    def _write(self, line: Mapping[str, object]) -> None:
        self._written_s = self._now()
        self._stream.write(json.dumps(line, separators=(",", ":")) + "\n")
        self._stream.flush()


def variables_of_interest(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that vLLM and its libraries may go by, sorted; of a secret only that it is set."""
    return {
        name: "(secret)" if _SECRET.search(name) else _IN_ADDRESS.sub("//", value)
        for name, value in sorted(variables.items())
        if name.startswith(_OF_INTEREST)
    }
