"""`laminabench bench prefill`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from laminabench.cli.output import Output, reporting
from laminabench.cli.ranges import positive
from laminabench.cli.traces.options import COUNT
from laminabench.cli.verdict import seconds_option, verdict
from laminabench.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

OWN_CORES = 3


@click.command()
@click.option(
    "--source",
    type=click.Choice(["traffic", "computed"]),
    help="What the prefill worker sends: KV of made-up content, or prompts that it computes. By default "
    f"computed with {OWN_CORES} cores, traffic with fewer.",
)
@click.option(
    "--prompt-tokens-per-s",
    metavar="N",
    callback=positive,
    default="2000",
    show_default=True,
    help="With traffic: how fast it comes.",
)
@click.option("--batch", type=COUNT, default=8, show_default=True, help="Requests that decode.")
@click.option("--context", type=COUNT, default=1024, show_default=True, help="Tokens of each, at first.")
@click.option("--prompt-tokens", type=COUNT, default=1024, show_default=True, help="Of each prompt.")
@click.option("--rounds", type=COUNT, default=5, show_default=True, help="Rounds of the alternating run.")
@seconds_option("6", " in each of a round's four parts")
@reporting
def prefill(
    source: str | None,
    prompt_tokens_per_s: float,
    batch: int,
    context: int,
    prompt_tokens: int,
    rounds: int,
    seconds: float,
    out: Output,
) -> None:
    """Time between tokens of those who decode, with and without prompts that come meanwhile.

    Once with a prefill worker, whose KV the attention worker pulls between its other work, and once with
    prompts that the model worker computes in the batch's turn. llama-mini in bfloat16 with made-up weights, a
    model worker and an attention worker, one batch.
    """
    from laminabench.cli.engine_extra import needed

    with needed():
        from lamina.fhbn import ChannelError
        from lamina.serve import EngineError, RequestError
        from laminabench.bench.prefill import Offer, run

    if source is None:
        source = "computed" if len(os.sched_getaffinity(0)) >= OWN_CORES else "traffic"
    if prompt_tokens < 2:
        raise UserError(
            "bench-prompt-too-short",
            "--prompt-tokens 1: a prompt of one token has no KV to compute, give 2 or more",
        )
    offer = Offer(
        "computed" if source == "computed" else "traffic",
        prompt_tokens_per_s,
        batch,
        context,
        prompt_tokens,
        seconds,
    )
    try:
        with out.progress("rounds", unit="rounds") as progress:
            result = run(offer, rounds=rounds, progress=progress)
    except (ChannelError, EngineError, RequestError) as error:
        raise UserError(
            "bench-load-impossible", f"batch {batch:,}, context {context:,}, {rounds:,} rounds: {error}"
        ) from error
    out.result(result, lambda console: _render(console, result))


def _render(console: Console, result: dict[str, Any]) -> None:
    from rich.table import Table

    console.print(
        f"{result['model']}, bfloat16, {result['cores']} cores: {result['batch']} requests of "
        f"{result['context']:,} tokens and more decode, prompts of {result['prompt_tokens']:,} tokens come; "
        f"{result['rounds']} rounds"
    )
    console.print(_what_came(result), soft_wrap=True)
    table = Table(box=None, pad_edge=False)
    table.add_column("prompts")
    for title in (
        "TBT p50",
        "p99",
        "with prompts p50",
        "p99",
        "p99 ratio",
        "same batch",
        "tokens/s",
        "KV MB/s",
    ):
        table.add_column(title, justify="right")
    for name, way in result["ways"].items():
        ratios = (way["p99_ratio"], way["p99_ratio_alone"])
        table.add_row(
            name,
            *(f"{way[each][p]:,.1f} ms" for each in ("without", "with") for p in ("p50_ms", "p99_ms")),
            *(f"{each['median']:.2f} ({each['min']:.2f} to {each['max']:.2f})" for each in ratios),
            f"{way['prompt_tokens_per_s']['median']:,.0f}",
            f"{way['kv_bytes_per_s']['median'] / 1e6:,.0f}",
        )
    console.print(table)
    console.print(
        "same batch: of iterations without those whose prompts have just come, which each decode one token"
    )
    target = f"p99 TBT with prompts that are pulled, over without: below {result['target_p99_ratio']:.2f}"
    console.print(f"{target}: {verdict(result['met'])}", soft_wrap=True)


def _what_came(result: dict[str, Any]) -> str:
    if result["source"] == "traffic":
        sharing = "" if result["own_core"] else ", on a core that it shares with the model worker"
        return (
            f"traffic: the prefill worker computes nothing and sends KV of made-up content, "
            f"{result['offered_tokens_per_s']:,.0f} tokens/s{sharing}"
        )
    if result["own_core"]:
        return "computed: the prefill worker computes prompts on a core of its own"
    return (
        "computed: the prefill worker computes prompts, and takes the time for it from the model worker, "
        f"whose core it shares: not judged, that takes {OWN_CORES} cores"
    )
