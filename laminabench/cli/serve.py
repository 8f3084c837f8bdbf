"""`laminabench serve`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from laminabench.cli.output import Output, reporting
from laminabench.cli.ranges import COUNT, CountOr, NumberRange
from laminabench.errors import UserError
from laminabench.extras import needed

if TYPE_CHECKING:
    from laminabench.systems.live.lamina.served import ServeSetup


@click.command()
@click.option("--model", "model_name", help="Name, config.json or folder; llama-mini by default.")
@click.option("--deployment", help="Model+attention workers; 1xcpu+1xcpu by default.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Any other than loopback needs a key.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0 is any that is free."
)
@click.option(
    "--api-key-file",
    type=click.Path(dir_okay=False, exists=True, path_type=Path),
    help="The key that clients must send; or LAMINABENCH_API_KEY.",
)
@click.option(
    "--tokenizer",
    type=click.Path(path_type=Path),
    help="Folder or tokenizer.json; by default the model folder's. Without one: token ids only.",
)
@click.option("--served-name", help="What clients call the model; its name by default.")
@click.option("--max-model-len", type=COUNT, help="Most tokens of a prompt and its answer; else what fits.")
@click.option("--max-num-seqs", type=click.IntRange(1, 1 << 16), help="Most running at once; 256.")
@click.option(
    "--max-waiting",
    type=click.IntRange(1, 1 << 20),
    default=1024,
    show_default=True,
    help="Most requests waiting; more are refused with 429, to come back later.",
)
@click.option(
    "--max-body",
    metavar="BYTES",
    type=click.IntRange(1024, 1 << 30),
    default=8_000_000,
    show_default=True,
    help="Largest body of a request.",
)
@click.option(
    "--max-connections",
    type=click.IntRange(1, 1 << 20),
    default=4096,
    show_default=True,
    help="Most connections at once.",
)
@click.option(
    "--client-timeout",
    metavar="SECONDS",
    type=NumberRange(0.1, 86_400),
    default=30.0,
    show_default=True,
    help="For a request to come whole, and for a client to read on.",
)
@click.option(
    "--drain-timeout",
    metavar="SECONDS",
    type=NumberRange(0, 86_400),
    default=30.0,
    show_default=True,
    help="What running requests have to end in after SIGTERM or Ctrl-C.",
)
@click.option("--batches", type=CountOr("auto"), help="How many take turns, 1 is serial; 2, or auto.")
@click.option("--kv-tokens", type=COUNT, help="KV memory, of all workers together; else what fits.")
@click.option(
    "--admission",
    type=click.Choice(["reserve", "grow"]),
    default="reserve",
    show_default=True,
    help="KV for the longest answer at once, or as it grows, with preemption.",
)
@click.option(
    "--prefill",
    type=CountOr("model"),
    default="model",
    show_default=True,
    help="Prompts computed by the model workers (model), or by N others.",
)
@click.option(
    "--dtype", type=click.Choice(["bf16", "fp16", "fp32"]), help="Of weights and KV; else the model's."
)
@click.option(
    "--network",
    type=click.Choice(["auto", "shm", "gloo"]),
    default="auto",
    show_default=True,
    help="What links workers.",
)
@click.option("--oversubscribe", is_flag=True, help="More workers than cores may share them.")
@click.option("--ray", metavar="ADDRESS", help="Workers as actors of this Ray cluster, auto or host:port.")
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

    def starting() -> None:
        out.note(f"starting {setup.live.processes} workers; loading torch and weights takes some seconds")

    with needed():
        served.serve(setup, starting=starting, ready=ready)


def _setup(flags: Mapping[str, Any], *, verbose: bool) -> ServeSetup:
    """The choices, resolved; a UserError if they make no sense."""
    from laminabench.catalog.deployment import parse_deployment
    from laminabench.catalog.find_model import model
    from laminabench.catalog.hardware import load_devices
    from laminabench.systems.live import local
    from laminabench.systems.live.lamina import served
    from laminabench.systems.live.lamina import setup as live

    source = flags["model_name"] or local.MODEL
    shape = local.in_dtype(model(source), flags["dtype"])
    same = {
        name: flags[name] for name in ("batches", "admission", "kv_tokens", "oversubscribe", "prefill", "ray")
    }
    name = flags["served_name"] or shape.name
    if not name.strip() or not name.isprintable():
        raise UserError("serve-name", "--served-name is what clients write: give it visible characters")
    return served.ServeSetup(
        live.LiveSetup(
            model=shape,
            source=source,
            deployment=parse_deployment(flags["deployment"] or live.DEPLOYMENT, load_devices()),
            network=flags["network"],
            max_sequences=flags["max_num_seqs"] or local.MAX_SEQUENCES,
            **same,
        ),
        name=name,
        host=flags["host"],
        port=flags["port"],
        tokenizer=served.tokenizer_of(source, flags["tokenizer"]),
        api_key=served.api_key(flags["api_key_file"]),
        limits={
            "body_bytes": flags["max_body"],
            "most_waiting": flags["max_waiting"],
            "most_connections": flags["max_connections"],
            "client_s": flags["client_timeout"],
            "drain_s": flags["drain_timeout"],
            "max_model_len": flags["max_model_len"],
        },
        verbose=verbose,
    )
