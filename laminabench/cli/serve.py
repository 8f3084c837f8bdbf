"""`laminabench serve`."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from laminabench.cli.flags import with_fields
from laminabench.cli.options import COUNT, PATH, CountOr, NumberRange, option
from laminabench.cli.output import Output, reporting
from laminabench.util.errors import UserError

if TYPE_CHECKING:
    from laminabench.systems.live.lamina.served import ServeSetup


@click.command()
@option("--model model_name", None, "Name, config.json or folder; default: llama-mini.")
@option("--deployment", None, "Model+attention workers, of several instances A,B; default: 1xcpu+1xcpu.")
@option("--host", None, "Address to listen on; any but loopback needs a key.", "127.0.0.1")
@option("--port", click.IntRange(0, 65535), "Port to listen on; 0: any free one.", 8000)
@option(
    "--api-key-file",
    click.Path(dir_okay=False, exists=True, path_type=Path),
    "File of the key that clients must send; or LAMINABENCH_API_KEY.",
)
@option(
    "--tokenizer",
    PATH,
    "Folder or tokenizer.json; default: the model folder's. Without one: token ids only.",
)
@option("--served-name", None, "Name of the model for clients; default: its own.")
@option("--max-model-len", COUNT, "Limit of a prompt with its answer; default: what fits.")
@option("--max-num-seqs", click.IntRange(1, 1 << 16), "Limit of running requests; default: 256.")
@option(
    "--max-waiting",
    click.IntRange(1, 1 << 20),
    "Limit of waiting requests; more are refused with 429.",
    1024,
)
@option(
    "--max-body",
    click.IntRange(1024, 1 << 30),
    "Limit of a request's body; default: enough for the longest prompt.",
    metavar="BYTES",
)
@option("--max-connections", click.IntRange(1, 1 << 20), "Limit of connections at once.", 4096)
@option(
    "--allowed-host",
    click.STRING,
    "A host name of this server other than loopback's; only without a key.",
    multiple=True,
)
@option(
    "--client-timeout",
    NumberRange(0.1, 86_400),
    "Time for a request to arrive completely, and for a client to read on.",
    30.0,
    metavar="SECONDS",
)
@option(
    "--drain-timeout",
    NumberRange(0, 86_400),
    "Time for running requests to end after SIGTERM or Ctrl-C.",
    30.0,
    metavar="SECONDS",
)
@option(
    "--journal",
    click.Path(dir_okay=False, path_type=Path),
    "File of requests with a request_id: their clients, and a restarted server, resume them.",
)
@option(
    "--admission",
    click.Choice(["reserve", "grow"]),
    "KV for the longest answer at once, or as it grows, with preemption.",
    "reserve",
)
@option(
    "--prefill",
    CountOr("model"),
    "Prompts computed by the model workers (model), or by N others.",
    "model",
)
@option("--network", click.Choice(["auto", "shm", "gloo"]), "Network engine between workers.", "auto")
@option("--batches", CountOr("auto"), "Batches that take turns (1: serial), or auto; default: 2.")
@functools.partial(
    with_fields,
    names=(
        *("max_batched_tokens", "kv_tokens", "kv_overcommit", "dtype", "kv_dtype", "oversubscribe", "ray"),
        *("kv_copy", "instances", "router", "queue"),
    ),
)
@reporting
def serve(out: Output, **flags: Any) -> None:
    """Serve a model over OpenAI's HTTP API, until SIGTERM or Ctrl-C.

    \b
    laminabench serve --model llama-mini --port 8000
    laminabench serve --model path/to/model --deployment 1xcpu+1xcpu --served-name my-model
    """
    from laminabench.systems.live.lamina import served

    setup = _setup(flags, verbose=out.verbose)
    if setup.tokenizer is None:
        out.note("no tokenizer: prompts are token ids, answers have token ids (give one with --tokenizer)")

    def ready(url: str) -> None:
        if out.as_json:
            click.echo(json.dumps({"url": url, "model": setup.name}))
        else:
            click.echo(f"serving {setup.name} at {url}")

    served.serve(setup, listener=out, ready=ready)


def _setup(flags: Mapping[str, Any], *, verbose: bool) -> ServeSetup:
    """Resolve the options; raise UserError if they make no sense."""
    from laminabench.catalog.deployment import parse_deployments
    from laminabench.catalog.find_model import model
    from laminabench.catalog.hardware import load_devices
    from laminabench.systems.live import local
    from laminabench.systems.live.lamina import served
    from laminabench.systems.live.lamina import setup as live

    source = flags["model_name"] or local.MODEL
    shape = local.in_dtype(model(source), flags["dtype"])
    deployments = parse_deployments(
        flags["deployment"] or live.DEPLOYMENT, flags["instances"], load_devices()
    )
    same = {name: flags[name] for name in ("batches", "admission", "kv_tokens", "prefill", "ray")}
    name = flags["served_name"] or shape.name
    if not name.strip() or not name.isprintable():
        raise UserError("serve-name", "--served-name is what clients write: give it visible characters")
    return served.ServeSetup(
        live.LiveSetup(
            model=shape,
            source=source,
            deployment=deployments[0],
            deployments=deployments,
            router=flags["router"] or "round-robin",
            queue=flags["queue"] or "each",
            network=flags["network"],
            kv_overcommit=flags["kv_overcommit"] or 1.0,
            kv_dtype=flags["kv_dtype"] or "auto",
            kv_copy=flags["kv_copy"] or "none",
            oversubscribe=bool(flags["oversubscribe"]),
            max_num_seqs=flags["max_num_seqs"] or local.MAX_SEQUENCES,
            max_batched_tokens=flags["max_batched_tokens"] or live.PROMPT_TOKENS,
            **same,
        ),
        name=name,
        host=flags["host"],
        port=flags["port"],
        tokenizer=served.tokenizer_of(source, flags["tokenizer"]),
        api_key=served.api_key(flags["api_key_file"]),
        limits={
            "body_bytes": flags["max_body"],
            "allowed_hosts": served.allowed_hosts(flags["allowed_host"]),
            "most_waiting": flags["max_waiting"],
            "most_connections": flags["max_connections"],
            "client_s": flags["client_timeout"],
            "drain_s": flags["drain_timeout"],
            "max_model_len": flags["max_model_len"],
        },
        verbose=verbose,
        journal=flags["journal"],
    )
