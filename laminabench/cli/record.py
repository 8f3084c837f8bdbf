"""`laminabench record`."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from laminabench.cli.flags import GroupedCommand, given_in, with_fields
from laminabench.cli.options import COUNT, Decorator, option, target_option
from laminabench.cli.output import Output, reporting
from laminabench.requests.replay import CUTS, GROUPS, SERVER
from laminabench.util.errors import Interrupted

if TYPE_CHECKING:
    from laminabench.workflows.validate.recording import Recording

# All options that leave the trace's arrivals unchanged.
OFFERED = ("trace", "model", *(name for name in GROUPS[SERVER] if name != "connections"), *GROUPS[CUTS])


def set_up_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add options for the recorded server's setup, which recordings may not contain."""
    options: list[Decorator] = [
        option("--deployment", None, "The server's devices: 1xrtx-4090."),
        option("--max-num-seqs", COUNT, "The server's limit of requests at once."),
        option("--max-batched-tokens", COUNT, "The server's limit of tokens per iteration."),
        option("--kv-tokens", COUNT, "The server's KV capacity; default: what fits."),
        option("--host", None, "The server's host, as of replays: vllm-0.19; default: that of its version."),
        option("--server-version", None, "The vLLM release, where the server does not say it: 0.18.0."),
        option("--graph-rows", COUNT, "Largest captured CUDA graph of the server; default: vLLM's."),
        click.option(
            "--host-async/--no-host-async",
            default=None,
            help="Whether the server scheduled a step ahead; default: as its release does.",
        ),
        click.option(
            "--prefix-caching/--no-prefix-caching",
            default=None,
            help="Whether the server cached prefixes of prompts; default: yes.",
        ),
    ]
    return functools.reduce(lambda made, add: add(made), reversed(options), command)


@click.command(cls=GroupedCommand, short=False)
@target_option("The recording: one file of numbers (.toml).")
@functools.partial(with_fields, names=OFFERED)
@option("--costs", None, "The cost set to predict the recording with.")
@set_up_options
@reporting
def record(target: Path, costs: str | None, out: Output, **flags: Any) -> None:
    """Offer a trace to a running server, and record the times of each request's first and last token.

    \b
    laminabench record --url http://127.0.0.1:8000 --model llama3.1-8b --trace sharegpt --request-rate 10 \\
        --deployment 1xrtx-4090 --max-num-seqs 256 --costs vllm-0.19 -o mine.toml
    laminabench validate --recorded mine.toml
    """
    from laminabench.runs.replace import require_writable
    from laminabench.systems.registry import SERVER
    from laminabench.workflows.replay import ReplayRequest, run
    from laminabench.workflows.validate.recording import read, require_set_up

    require_writable(target)
    options = given_in({name: flags.pop(name) for name in OFFERED})
    settings = {name: value for name, value in {"costs": costs, **flags}.items() if value is not None}
    require_set_up("record", {"model": "", "source": "", "max_batched_tokens": 1, **settings})
    with tempfile.TemporaryDirectory() as temporary:
        request = ReplayRequest(system=SERVER, mode="open", directory=f"{temporary}/run", **options)
        result = run(request, listener=out)
        if result.replayed.interrupted:
            raise Interrupted("nothing was written")
        result.require_sound()
        recording = replace(read(Path(request.directory or ""), **settings), name=target.stem)
    facts = {"recording": str(target), **_facts(recording)}
    recording.write(target)
    out.note(f"wrote {target}")
    out.result(
        facts,
        lambda console: console.print(
            f"{facts['requests']:,} requests: mean TTFT {facts['ttft_ms']:,.0f} ms, latency "
            f"{facts['latency_ms']:,.0f} ms, TPOT {facts['tpot_ms']:,.1f} ms; predict them with "
            f"`laminabench validate --recorded {target}`",
            soft_wrap=True,
        ),
    )


def _facts(recording: Recording) -> dict[str, float]:
    """Return averages of the recording."""
    from laminabench.workflows.validate.recorded import METRICS, Times

    times = Times.measured(recording)
    means = {f"{name}_ms": 1000 * float(getattr(times, name).mean()) for name in METRICS}
    return {"requests": len(recording), **means}
