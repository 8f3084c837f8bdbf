"""`laminabench convert`."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from laminabench.cli.options import PATH, option
from laminabench.cli.output import Output, reporting
from laminabench.conversion.source import model_source
from laminabench.render.terminal import literal, table
from laminabench.requests.fields import MAX_COUNT
from laminabench.util.errors import CheckFailedError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from laminabench.conversion.products import Product
    from laminabench.conversion.report import ConversionReport, FamilyRow, SliceReport

Row = TypeVar("Row")
Member = TypeVar("Member")
Key = TypeVar("Key", bound=Hashable)

# A smaller model is converted before a note could be read.
_LONG = 16
_PARTS = {
    "query": "before q is sent",
    "keyvalue": "q is sent: k and v",
    "rest": "during attention",
    "logits": "up to the logits",
}


@click.command()
@click.argument("model", required=False)
@click.option("--families", is_flag=True, help="Convert a small model of every supported family instead.")
@option("--graph", PATH, "Figure of a slice: .svg, .png or .pdf.")
@option(
    "--slice index",
    click.IntRange(0, MAX_COUNT),
    "Slice for --graph, --source and -v; default for --graph: a typical one.",
)
@option(
    "--rope",
    click.Choice(["carry", "recompute"]),
    "Carry rotary tables from slice to slice, or compute them in each.",
    "carry",
)
@option(
    "--dtype",
    click.Choice(["bfloat16", "float16", "float32"]),
    "Type of weights and activations; default: the config's.",
)
@click.option("--source", is_flag=True, help="Print the generated Python of the slices.")
@click.option("--anew", is_flag=True, help="Convert without reading or writing the cache.")
@reporting
def convert(
    model: str | None,
    families: bool,
    graph: Path | None,
    index: int | None,
    rope: str,
    dtype: str | None,
    source: bool,
    anew: bool,
    out: Output,
) -> None:
    """Cut a model at its attention operators, and describe the slices. Needs no weights.

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
        _convert_families(out, dtype, rope)
        return
    assert model is not None
    from laminabench.render.static.drawn import check_target
    from laminabench.render.static.layer import draw_slice

    if graph is not None:
        check_target(graph)
    chosen = model_source(model)
    layers = chosen.layers()
    if layers is not None and layers >= _LONG:
        out.note(f"converting {chosen.name}, {layers} layers: some seconds where it is not known from before")
    from laminabench.conversion.report import check_slice, report, typical_slice  # torch takes seconds

    facts = report(chosen, dtype, rope, keep=not anew)
    if index is not None:
        check_slice(facts, index)
    shown: dict[str, object] = {**facts}
    if graph is not None:
        drawn = typical_slice(facts) if index is None else index
        draw_slice(facts, drawn, graph)
        shown["graph"] = {"slice": drawn, "path": str(graph)}
        out.note(f"drew slice {drawn} into {graph}")

    def text(console: Console) -> None:
        _model(console, facts)
        if out.verbose:
            _instructions(console, facts, index)
        if source:
            _source(console, facts, index)

    out.result(shown, text)
    if not facts["transfer_agrees"]:
        wrong = next(row for row in facts["transfer"] if not row["agrees"])
        raise CheckFailedError(
            "convert-bytes-moved",
            f"layer {wrong['layer']} moves {wrong['bytes']:,} bytes a token where (2 + 2/G) e d is "
            f"{wrong['formula_bytes']:,.0f}",
        )


def _convert_families(out: Output, dtype: str | None, rope: str) -> None:
    from laminabench.catalog.small_models import SMALL_MODELS
    from laminabench.conversion.report import report, summary

    rows: list[FamilyRow] = []
    with out.progress("converting", unit="families") as progress:
        for done, name in enumerate(SMALL_MODELS):
            progress(done, len(SMALL_MODELS))
            rows.append(summary(report(model_source(name), dtype, rope)))
    out.result({"families": rows}, lambda console: _families(console, rows))
    if wrong := [row["family"] for row in rows if not row["transfer_agrees"]]:
        raise CheckFailedError(
            "convert-bytes-moved", f"{', '.join(wrong)}: the bytes moved are not (2 + 2/G) e d"
        )


def _model(console: Console, facts: ConversionReport) -> None:
    """Print the model, its attention, its slices by class, and the values saved and moved."""
    count = len(facts["classes"])
    console.print(
        f"[bold]{literal(facts['model'])}[/bold]: cut at {facts['layers']} attention operators into "
        f"{len(facts['slices'])} slices of {count} class{'es' if count != 1 else ''}; {facts['dtype']}, "
        f"RoPE tables {'carried' if facts['rope'] == 'carry' else 'recomputed'}; {facts['seconds']:.1f} s"
        f"{', known from before' if facts['known'] else ''}"
    )
    assumed = f"; by transformers' defaults: {', '.join(facts['assumed'])}" if facts["assumed"] else ""
    console.print(f"shapes from {literal(facts['shapes_from'])}{assumed}", style="dim")
    for part in (_attentions, _classes, _saved, _states, _transfer):
        part(console, facts)


def _attentions(console: Console, facts: ConversionReport) -> None:
    titles = (
        "attention of layers",
        ">heads",
        ">KV heads",
        ">head dim",
        ">scale",
        ">window",
        ">softcap",
        "sinks",
    )
    drawn = _table(titles)
    for cells, layers in _grouped(facts["attentions"], _attention, lambda op: int(op["layer"])):
        drawn.add_row(_ranges(layers), *cells)
    _titled(console, "Attention operators", drawn)


def _attention(op: dict[str, float | str]) -> tuple[str, ...]:
    latent, chunk, window = op["latent"], op["chunk"], op["window"]
    return (
        f"{op['heads']}",
        f"{op['kv_heads']}",
        f"{op['head_dim']}, value the first {latent}" if latent else f"{op['head_dim']}",
        f"{op['scale']:.4g}",
        f"chunk of {chunk:,}" if chunk else f"{window:,}" if window else "all",
        f"{op['softcap']:g}" if op["softcap"] else "none",
        "one a head" if op["sinks"] else "none",
    )


def _classes(console: Console, facts: ConversionReport) -> None:
    titles = ("class", "slices", "part", ">operators", ">weights MB", "matrix products, in order")
    drawn = _table(titles, wide=5)
    for kind in facts["classes"]:
        work = facts["slices"][kind["slices"][0]]["products"]
        for place, part in enumerate(work):
            drawn.add_row(
                *((f"{kind['index']}", _ranges(kind["slices"])) if place == 0 else ("", "")),
                _PARTS[part["part"]],
                f"{part['operators']}" if part["operators"] else "-",
                f"{part['weight_bytes'] / 1e6:,.1f}" if part["weight_bytes"] else "-",
                literal(", ".join(_product(one) for one in part["products"]) or "-"),
            )
    _titled(console, "What a slice runs", drawn)
    console.print(_overlap(facts))
    console.print(_fused(facts))


def _overlap(facts: ConversionReport) -> str:
    """Return a sentence on the work of the typical slice while attention runs."""
    kind = max(facts["classes"][:-1], key=lambda one: len(one["slices"]))
    query, keyvalue, rest = facts["slices"][kind["slices"][0]]["products"]
    total = sum(part["weight_bytes"] for part in (query, keyvalue, rest))
    share = (keyvalue["weight_bytes"] + rest["weight_bytes"]) / total if total else 0.0
    names = ", ".join(one["name"] for part in (keyvalue, rest) for one in part["products"])
    return literal(
        f"Overlap: attention over the earlier tokens runs while a slice of class {kind['index']} computes "
        f"{names}: {share:.1%} of its weights."
    )


def _fused(facts: ConversionReport) -> str:
    """Return a sentence on the native operators that a CPU uses, over all slices."""
    counts: dict[str, int] = {}
    for kind in facts["classes"]:
        for name, count in kind["fused"].items():
            counts[name] = counts.get(name, 0) + count * len(kind["slices"])
    words = ", ".join(f"{count} x {name}" for name, count in counts.items() if count)
    return f"Native operators on a CPU, in all slices: {words or 'none'}."


def _saved(console: Console, facts: ConversionReport) -> None:
    groups = _grouped(
        [piece for piece in facts["slices"] if piece["cut"]],
        lambda piece: (
            piece["cut_bytes"],
            tuple((v["made_by"], v["type"], v["bytes"]) for v in piece["cut"]),
        ),
        lambda piece: piece["index"],
    )
    drawn = _table(("after slices", ">bytes", "values on the cut"), wide=2)
    for (total, values), slices in groups:
        drawn.add_row(_ranges(slices), f"{total:,}", literal(_values(values) or "nothing"))
    _titled(console, "Context saved around attention, for one request", drawn)


def _states(console: Console, facts: ConversionReport) -> None:
    if not facts["states"]:
        return
    drawn = _table(("layers", "state", "type", ">bytes"))
    for (kind, type_, size), layers in _grouped(
        facts["states"], lambda one: (one["kind"], one["type"], one["bytes"]), lambda one: one["layer"]
    ):
        drawn.add_row(_ranges(layers), kind, type_, f"{size:,}")
    _titled(console, "What recurrent layers keep on the model worker, for one request", drawn)
    console.print(f"{facts['state_bytes']:,} bytes in all; layers are those of the model", style="dim")


def _values(values: Iterable[tuple[str, str, int]]) -> str:
    """Format saved values by type: `cos, sin bfloat16[B, 1, 1, 128] 2 x 256 B`."""
    words = []
    for (kind, size), names in _grouped(values, lambda value: value[1:], lambda value: value[0]):
        if size:  # every worker has the tokens and positions
            often = f"{len(names)} x " if len(names) > 1 else ""
            words.append(f"{', '.join(names)} {kind} {often}{size:,} B")
    return "; ".join(words)


def _transfer(console: Console, facts: ConversionReport) -> None:
    groups = _grouped(facts["transfer"], lambda row: tuple(row.values())[1:], lambda row: row["layer"])
    drawn = _table(("layers", ">q", ">k", ">v", ">output", ">sum", ">(2 + 2/G) e d", ""))
    for (*counted, formula, expected, agrees), layers in groups:
        drawn.add_row(
            _ranges(layers), *(f"{count:,}" for count in counted), f"{formula} = {expected:,.0f}",
            "[green]agrees[/green]" if agrees else "[red]differs[/red]",
        )  # fmt: skip
    _titled(console, "Bytes between model and attention workers, for one token and layer", drawn)
    console.print(
        "counted on the slices; G: query heads to a KV head, e: bytes of an element, d: heads x head dim, "
        "latent KV: e x (heads x (key + value) + key); B: requests of a batch",
        style="dim",
    )


def _instructions(console: Console, facts: ConversionReport, index: int | None) -> None:
    """Print all instructions of the first slice of each class, or of one slice."""
    for piece in _chosen(facts, index):
        console.print(f"\n[bold]Slice {piece['index']}[/bold] (class {piece['class']}), all instructions")
        for part in piece["parts"]:
            console.print(f"  {_PARTS[part['name']]}")
            for one in part["instructions"]:
                weights = [weight["name"] for weight in one["weights"]]
                words = f"    {one['result']} = {one['op']}({', '.join([*one['inputs'], *weights])})"
                console.print(f"{words} {one['type'] or ''}".rstrip(), markup=False, soft_wrap=True)
            gives = ", ".join(value["name"] for value in part["gives"])
            console.print(f"    gives {gives}", markup=False, soft_wrap=True)


def _source(console: Console, facts: ConversionReport, index: int | None) -> None:
    """Print the generated Python of each class, or of one slice."""
    for piece in _chosen(facts, index):
        kind = facts["classes"][piece["class"]]
        console.print(f"\n# class {kind['index']}: slices {_ranges(kind['slices'])}")
        console.print(kind["source"].rstrip(), markup=False, soft_wrap=True)


def _families(console: Console, rows: Iterable[FamilyRow]) -> None:
    """Print a line for each family."""
    titles = ("family", ">slices", ">classes", ">context\nbytes", ">GEMMs\nbefore q", ">with\nk, v")
    more = (
        ">during\nattention",
        ">bytes moved\nper token, layer",
        "(2 + 2/G) e d",
        ">state bytes\nper request",
    )
    drawn = _table((*titles, *more))
    for row in rows:
        drawn.add_row(
            f"[bold]{row['family']}[/bold]",
            f"{row['slices']}",
            f"{row['classes']}",
            f"{row['context_bytes']:,}",
            *(f"{row['products'][part]}" for part in ("query", "keyvalue", "rest")),
            f"{row['transfer_bytes']:,}",
            "[green]agrees[/green]" if row["transfer_agrees"] else "[red]differs[/red]",
            f"{row['state_bytes']:,}",
        )
    console.print(drawn)
    console.print(
        "Small models, made up: 4 layers of width 512. `laminabench convert llama` says more of one.",
        style="dim",
    )


def _chosen(facts: ConversionReport, index: int | None) -> list[SliceReport]:
    chosen = [kind["slices"][0] for kind in facts["classes"]] if index is None else [index]
    return [facts["slices"][number] for number in chosen]


def _product(one: Product) -> str:
    return f"{one['name']} {'x'.join(map(str, one['shape']))}".rstrip()


def _table(titles: Sequence[str], wide: int | None = None) -> Table:
    """Return a table of which only one column wraps."""
    drawn = table(titles, padding=(0, 2, 0, 0))
    for place, column in enumerate(drawn.columns):
        column.no_wrap = place != wide
    return drawn


def _titled(console: Console, title: str, drawn: Table) -> None:
    console.print(f"\n[bold]{title}[/bold]")
    console.print(drawn)


def _grouped(
    rows: Iterable[Row], key: Callable[[Row], Key], member: Callable[[Row], Member]
) -> list[tuple[Key, list[Member]]]:
    """Group the members of equal rows."""
    groups: dict[Key, list[Member]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(member(row))
    return list(groups.items())


def _ranges(numbers: Iterable[int]) -> str:
    """Format numbers as `0-3, 5`; of many ranges the first two, and the count."""
    pieces: list[list[int]] = []
    count = 0
    for number in numbers:
        count += 1
        if pieces and pieces[-1][-1] == number - 1:
            pieces[-1][1:] = [number]
        else:
            pieces.append([number])
    words = ["-".join(map(str, piece)) for piece in pieces]
    return ", ".join(words) if len(words) <= 4 else f"{', '.join(words[:3])}, ... ({count})"
