"""A wall clock that jumps back and forth by hours: no measurement and no wait may depend on it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from experiments.disk import compiled, memory
from experiments.prefork import Warm
from experiments.resumes import LIVE, LONGEST_S, Undisturbed, interrupted, undisturbed, write_trace
from experiments.serving import metrics_of
from experiments.stream_client import WrongAnswerError, answers_of, check_tokens, seeded_requests
from experiments.tally import Tally
from laminabench.runs.read import read_run

SOURCE = Path(__file__).with_name("clock.c")
JUMP_EVERY_MS = 100
# Most difference of two clocks that are read one after the other.
_SLACK_S = 0.05
_SERVE = (
    *("serve", "--model", "llama-tiny", "--dtype", "fp32", "--port", "0", "--json", "-q"),
    "--oversubscribe",
)
_SWEEP = (
    *("sweep", "--trace", "t.csv", "--model", "llama3-70b", "--system", "lamina", "--vary", "batches=1,2"),
    *("--json", "-q", "--out", "sweep"),
)
_REQUESTS = 12


class _Both(NamedTuple):
    """Processes whose clock jumps, and the results of others whose clock does not."""

    jumping: Warm
    undisturbed_run: Undisturbed
    answers: Mapping[Any, list[int]]
    points: Any


def clock_jumps(seeds: Sequence[int]) -> Tally:
    """Run a replay, an interrupted one, a sweep or a server, with a clock that jumps ten times a second."""
    tally = Tally("clock-jumps")
    kinds = list(KINDS)
    with tempfile.TemporaryDirectory() as place, compiled(SOURCE) as clock:
        steady, jumps = Path(place, "steady"), Path(place, "jumps")
        for folder in (steady, jumps):
            folder.mkdir()
        environment = {"LD_PRELOAD": str(clock), "LAMINABENCH_CLOCK": f"{seeds[0]}:{JUMP_EVERY_MS}"}
        with Warm(steady) as warm:
            undisturbed_run = undisturbed(warm, steady)
            points = _points(warm, steady)
            with _served(warm, steady) as (port, _):
                answers = asyncio.run(answers_of(port, seeded_requests(_REQUESTS, 1, 40)))
        with Warm(jumps, environment) as jumping:
            undisturbed(jumping, jumps)  # it loads the model
            both = _Both(jumping, undisturbed_run, answers, points)
            for seed in seeds:
                name = kinds[seed % len(kinds)]
                with memory() as folder:
                    write_trace(folder)
                    kind, what = KINDS[name](both, folder, random.Random(seed))
                tally.add(kind, name, seed, what)
    return tally


def _replay(both: _Both, folder: Path, _: random.Random) -> tuple[str | None, str]:
    status, facts, took_s = _done(both.jumping, folder, [*LIVE, "--out", "run"])
    if status:
        return "crashed", f"it ended with {status}"
    for name in ("requests", "tokens_generated", "tokens_sha256"):
        if facts[name] != both.undisturbed_run.facts[name]:
            return "wrong", f"{name} is {facts[name]}"
    return _times(folder / "run", facts, took_s)


def _resumed(both: _Both, folder: Path, drawn: random.Random) -> tuple[str | None, str]:
    kind, what, _ = interrupted(both.jumping, folder, both.undisturbed_run, drawn, 3)
    return kind, what


def _times(run: Path, facts: Mapping[str, Any], took_s: float) -> tuple[str | None, str]:
    """Check that every measured time is between zero and the total."""
    outcome = read_run(run).outcome
    columns = {
        **{name: outcome.requests[name] for name in ("admitted_s", "first_token_s", "finished_s")},
        **{name: outcome.iterations[name] for name in ("start_s", "duration_s")},
    }
    measured = {name: np.asarray(column, np.float64) for name, column in columns.items()}
    measured |= {name: np.array([facts[name]]) for name in ("duration_s", "wall_s")}
    for name, values in measured.items():
        values = values[~np.isnan(values)]  # noqa: PLW2901
        if len(values) and (values.min() < 0 or values.max() > took_s + _SLACK_S):
            return "wrong", f"{name} from {values.min():g} to {values.max():g} s, of {took_s:g}"
    return None, ""


def _sweep(both: _Both, folder: Path, _: random.Random) -> tuple[str | None, str]:
    began = time.perf_counter()
    points = _points(both.jumping, folder)
    if points != both.points:
        return "wrong", "other points"
    return (None, "") if time.perf_counter() - began < LONGEST_S else ("wrong", "it took too long")


def _points(warm: Warm, folder: Path) -> Any:
    """Return a sweep's results without their durations."""
    status, facts, _ = _done(warm, folder, _SWEEP)
    if status:
        raise RuntimeError(f"a sweep ended with {status}")
    return [
        {key: value for key, value in point.items() if not key.endswith("wall_s")} for point in facts["rows"]
    ]


def _server(both: _Both, folder: Path, _: random.Random) -> tuple[str | None, str]:
    began = time.perf_counter()
    with _served(both.jumping, folder) as (port, end):
        try:
            answers = asyncio.run(answers_of(port, list(both.answers)))
            for request, made in answers.items():
                check_tokens(request, made, both.answers[request])
        except WrongAnswerError as error:
            return error.kind, str(error)
        took_s = time.perf_counter() - began
        for name, value in metrics_of(port).items():
            # Sums of times of requests, which are here all at once.
            if name.partition("{")[0].endswith("_seconds_sum") and not 0 <= value <= took_s * 100:
                return "wrong", f"{name} is {value:g} s"
        status = end()
    return (None, "") if status in (0, 143) else ("crashed", f"the server ended with {status}")


@contextlib.contextmanager
def _served(warm: Warm, folder: Path) -> Iterator[tuple[int, Callable[[], int | None]]]:
    """Yield the port of a server, and a function that ends it and returns its exit status."""
    with (folder / "out").open("w+b") as out, (folder / "err").open("w+b") as errors:
        running = warm.start(_SERVE, folder, errors, out)

        def end() -> int | None:
            running.kill(signal.SIGTERM)
            return running.wait(LONGEST_S)

        try:
            end_s = time.monotonic() + LONGEST_S
            while not (output := (folder / "out").read_text()).endswith("\n"):
                if time.monotonic() > end_s or running.wait(0.02) is not None:
                    raise RuntimeError(f"no server: {(folder / 'err').read_text()}")
            yield int(json.loads(output.splitlines()[0])["url"].rpartition(":")[2]), end
        finally:
            running.close()


def _done(warm: Warm, folder: Path, command: Sequence[str]) -> tuple[int | None, dict[str, Any], float]:
    """Return the exit status, the answer, and the duration by a clock that does not jump."""
    began = time.perf_counter()
    with (
        (folder / "out").open("w+b") as out,
        (folder / "err").open("w+b") as errors,
        contextlib.closing(warm.start(command, folder, errors, out)) as running,
    ):
        status = running.wait(LONGEST_S)
    took_s = time.perf_counter() - began
    answer = (folder / "out").read_bytes()
    return status, msgspec.json.decode(answer) if status == 0 else {}, took_s


KINDS: Mapping[str, Callable[[_Both, Path, random.Random], tuple[str | None, str]]] = {
    "a live replay": _replay,
    "an interrupted replay": _resumed,
    "a sweep": _sweep,
    "a server": _server,
}
