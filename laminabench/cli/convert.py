"""`laminabench convert`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from laminabench.cli.output import Output, reporting

# A small one is done before a note could be read.
_LONG = 16


@click.command()
@click.argument("model", required=False)
@click.option("--families", is_flag=True, help="Convert a small model of every supported family instead.")
@click.option("--graph", type=click.Path(path_type=Path), help="Draw a slice into this .svg, .png or .pdf.")
@click.option(
    "--slice",
    "index",
    type=click.IntRange(min=0),
    help="The slice for --graph, --source and -v; else a typical one for --graph.",
)
@click.option(
    "--rope", type=click.Choice(["carry", "recompute"]), default="carry", show_default=True,
    help="Carry rotary tables from slice to slice, or compute them in each.",
)  # fmt: skip
@click.option(
    "--dtype",
    type=click.Choice(["bfloat16", "float16", "float32"]),
    help="Of weights and activations; else the config's.",
)
@click.option("--source", is_flag=True, help="Print the Python that the slices were made into.")
@reporting
def convert(
    model: str | None,
    families: bool,
    graph: Path | None,
    index: int | None,
    rope: str,
    dtype: str | None,
    source: bool,
    out: Output,
) -> None:
    """Cut a model at its attention operators, and say what came of it. Needs no weights.

    MODEL is a name of the catalogue, a folder with a config.json, that file, or the name of a family (llama,
    gemma3, ...) for a small model of it.

    \b
    laminabench convert llama3-70b
    laminabench convert path/to/model --graph slice.svg
    laminabench convert --families
    """
    if families == (model is not None):
        raise click.UsageError("give a MODEL, or --families and none")
    if families and (graph or source or index is not None):
        raise click.UsageError("--graph, --slice and --source are for one MODEL")
    if families:
        _families(out, dtype, rope)
        return
    assert model is not None
    _one(out, model, graph=graph, index=index, rope=rope, dtype=dtype, source=source)


def _one(
    out: Output,
    name: str,
    *,
    graph: Path | None,
    index: int | None,
    rope: str,
    dtype: str | None,
    source: bool,
) -> None:
    from laminabench.cli.convert_text import render, render_instructions, render_source
    from laminabench.cli.engine_extra import needed
    from laminabench.conversion.asked import asked
    from laminabench.errors import CheckFailedError
    from laminabench.figures.converted_layer import draw_slice
    from laminabench.figures.drawn import check_target

    if graph is not None:
        check_target(graph)
    model = asked(name)
    layers = model.layers()
    if layers is not None and layers >= _LONG:
        out.note(f"running {layers} layers of {model.name} symbolically: about a tenth of a second each")
    with needed():  # torch takes seconds to import
        from laminabench.conversion.report import check_slice, report, typical_slice

    facts = report(model, dtype, rope)
    if index is not None:
        check_slice(facts, index)
    if graph is not None:
        drawn = typical_slice(facts) if index is None else index
        draw_slice(facts, drawn, graph)
        facts["graph"] = {"slice": drawn, "path": str(graph)}
        out.note(f"drew slice {drawn} into {graph}")

    def text(console: Any) -> None:
        render(console, facts)
        if out.verbose:
            render_instructions(console, facts, index)
        if source:
            render_source(console, facts, index)

    out.result(facts, text)
    if not facts["transfer_agrees"]:
        wrong = next(row for row in facts["transfer"] if not row["agrees"])
        raise CheckFailedError(
            "convert-bytes-moved",
            f"layer {wrong['layer']} moves {wrong['bytes']:,} bytes a token where (2 + 2/G) e d is "
            f"{wrong['formula_bytes']:,.0f}",
        )


def _families(out: Output, dtype: str | None, rope: str) -> None:
    from laminabench.catalog.small_models import SMALL_MODELS
    from laminabench.cli.convert_text import render_families
    from laminabench.cli.engine_extra import needed
    from laminabench.conversion.asked import asked
    from laminabench.errors import CheckFailedError

    with needed():
        from laminabench.conversion.report import report, summary

    rows = []
    with out.progress("converting", unit="families") as progress:
        for done, name in enumerate(SMALL_MODELS):
            progress(done, len(SMALL_MODELS))
            rows.append(summary(report(asked(name), dtype, rope)))
    out.result({"families": rows}, lambda console: render_families(console, rows))
    if wrong := [row["family"] for row in rows if not row["transfer_agrees"]]:
        raise CheckFailedError(
            "convert-bytes-moved", f"{', '.join(wrong)}: the bytes moved are not (2 + 2/G) e d"
        )
