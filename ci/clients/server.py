"""Our server, as a process of its own, and what it counts."""

from __future__ import annotations

import contextlib
import json
import subprocess
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from load import Counted

ENDED = "lamina_requests_total"
TOKENS = ("lamina_prompt_tokens_total", "lamina_completion_tokens_total")
GAPS = ("lamina_time_between_tokens_seconds_count", "lamina_time_between_tokens_seconds_sum")
FIRST = ("lamina_time_to_first_token_seconds_count", "lamina_time_to_first_token_seconds_sum")
LEAVE_S = 60


@dataclass(frozen=True)
class Server:
    """A server that answers."""

    url: str
    model: str

    def read(self) -> dict[str, float]:
        """Return the counters, summed over labels."""
        # From laminabench's environment: --help works without it.
        from prometheus_client.parser import text_string_to_metric_families

        with urllib.request.urlopen(self.url + "/metrics", timeout=30) as answer:
            text = answer.read().decode()
        values: dict[str, float] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                values[sample.name] = values.get(sample.name, 0.0) + sample.value
        return values


def since(before: dict[str, float], after: dict[str, float]) -> Counted:
    """Return the difference between two readings."""
    change = {name: after[name] - before.get(name, 0.0) for name in (ENDED, *TOKENS, *GAPS, *FIRST)}
    return Counted(
        requests=round(change[ENDED]),
        prompt_tokens=round(change[TOKENS[0]]),
        output_tokens=round(change[TOKENS[1]]),
        gaps=round(change[GAPS[0]]),
        gaps_s=change[GAPS[1]],
        ttft_ms=1e3 * change[FIRST[1]] / change[FIRST[0]] if change[FIRST[0]] else float("nan"),
    )


@contextlib.contextmanager
def serving(python: str, folder: Path, log: Path) -> Iterator[Server]:
    """`laminabench serve` of a model folder on a free port of the loopback, until the block is left."""
    command = [python, "-m", "laminabench", "serve", "--model", str(folder), "--deployment", "1xcpu+1xcpu"]
    command += ["--kv-tokens", "20000", "--port", "0", "--json"]
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=output, text=True)
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            if not line:
                raise RuntimeError(f"laminabench serve did not start:\n{log.read_text()[-3000:]}")
            ready = json.loads(line)
            yield Server(ready["url"].rstrip("/"), ready["model"])
            process.terminate()
            code = process.wait(LEAVE_S)
            if code:
                raise RuntimeError(f"laminabench serve ended with {code}:\n{log.read_text()[-3000:]}")
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
            process.stdout.close()
