"""What `laminabench convert` prints."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from laminabench.cli.output import literal

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_PARTS = {
    "query": "before q is sent",
    "keyvalue": "q is sent: k and v",
    "rest": "during attention",
    "logits": "up to the logits",
}


def render(console: Console, facts: Mapping[str, Any]) -> None:
    """The model, its attention, its slices by class, what is saved between them and what is moved."""
    _header(console, facts)
    _attentions(console, facts)
    _classes(console, facts)
    _saved(console, facts)
    _transfer(console, facts)


def _header(console: Console, facts: Mapping[str, Any]) -> None:
    count = len(facts["classes"])
    console.print(
        f"[bold]{literal(facts['model'])}[/bold]: cut at {facts['layers']} attention operators into "
        f"{len(facts['slices'])} slices of {count} class{'es' if count != 1 else ''}; {facts['dtype']}, "
        f"RoPE tables {'carried' if facts['rope'] == 'carry' else 'recomputed'}; {facts['seconds']:.1f} s"
    )
    assumed = f"; by transformers' defaults: {', '.join(facts['assumed'])}" if facts["assumed"] else ""
    console.print(f"shapes from {literal(facts['shapes_from'])}{assumed}", style="dim")


def _attentions(console: Console, facts: Mapping[str, Any]) -> None:
    shape = ("heads", "kv_heads", "head_dim", "scale", "window", "softcap")
    groups = _grouped(facts["attentions"], lambda op: tuple(op[key] for key in shape), lambda op: op["layer"])
    table = _table("attention of layers", ">heads", ">KV heads", ">head dim", ">scale", ">window", ">softcap")
    for (heads, kv_heads, head_dim, scale, window, softcap), layers in groups:
        table.add_row(
            ranges(layers), f"{heads}", f"{kv_heads}", f"{head_dim}", f"{scale:.4g}",
            f"{window:,}" if window else "all", f"{softcap:g}" if softcap else "none",
        )  # fmt: skip
    _titled(console, "Attention operators", table)


def _classes(console: Console, facts: Mapping[str, Any]) -> None:
    table = _table(
        "class", "slices", "part", ">operators", ">weights MB", "matrix products, in order", wide=5
    )
    for kind in facts["classes"]:
        work = facts["slices"][kind["slices"][0]]["products"]
        for place, part in enumerate(work):
            table.add_row(
                *((f"{kind['index']}", ranges(kind["slices"])) if place == 0 else ("", "")),
                _PARTS[part["part"]],
                f"{part['operators']}" if part["operators"] else "-",
                f"{part['weight_bytes'] / 1e6:,.1f}" if part["weight_bytes"] else "-",
                literal(", ".join(_product(one) for one in part["products"]) or "-"),
            )
    _titled(console, "What a slice runs", table)
    console.print(_overlap(facts))


def _overlap(facts: Mapping[str, Any]) -> str:
    """One sentence on what the typical slice has left to do while attention runs."""
    kind = max(facts["classes"][:-1], key=lambda one: len(one["slices"]))
    query, keyvalue, rest = facts["slices"][kind["slices"][0]]["products"]
    whole = sum(part["weight_bytes"] for part in (query, keyvalue, rest))
    share = (keyvalue["weight_bytes"] + rest["weight_bytes"]) / whole if whole else 0.0
    names = ", ".join(one["name"] for part in (keyvalue, rest) for one in part["products"])
    return literal(
        f"Overlap: attention over the earlier tokens runs while a slice of class {kind['index']} computes "
        f"{names}: {share:.1%} of its weights."
    )


def _saved(console: Console, facts: Mapping[str, Any]) -> None:
    groups = _grouped(
        [piece for piece in facts["slices"] if piece["cut"]],
        lambda piece: (
            piece["cut_bytes"],
            tuple((v["made_by"], v["type"], v["bytes"]) for v in piece["cut"]),
        ),
        lambda piece: piece["index"],
    )
    table = _table("after slices", ">bytes", "values on the cut", wide=2)
    for (total, values), slices in groups:
        table.add_row(ranges(slices), f"{total:,}", literal(_values(values) or "nothing"))
    _titled(console, "Context saved around attention, for one request", table)


def _values(values: Iterable[tuple[str, str, int]]) -> str:
    """What is saved, equal types together: `cos, sin bfloat16[B, 1, 1, 128] 2 x 256 B`."""
    words = []
    for (kind, size), names in _grouped(values, lambda value: value[1:], lambda value: value[0]):
        if size:  # tokens and positions are known everywhere
            often = f"{len(names)} x " if len(names) > 1 else ""
            words.append(f"{', '.join(names)} {kind} {often}{size:,} B")
    return "; ".join(words)


def _transfer(console: Console, facts: Mapping[str, Any]) -> None:
    keys = ("q_bytes", "k_bytes", "v_bytes", "attended_bytes", "bytes", "formula", "formula_bytes", "agrees")
    groups = _grouped(
        facts["transfer"], lambda row: tuple(row[key] for key in keys), lambda row: row["layer"]
    )
    table = _table("layers", ">q", ">k", ">v", ">output", ">sum", ">(2 + 2/G) e d", "")
    for (*counted, formula, expected, agrees), layers in groups:
        table.add_row(
            ranges(layers), *(f"{count:,}" for count in counted), f"{formula} = {expected:,.0f}",
            "[green]agrees[/green]" if agrees else "[red]differs[/red]",
        )  # fmt: skip
    _titled(console, "Bytes between model and attention workers, for one token and layer", table)
    console.print(
        "counted on the slices; G: query heads to a KV head, e: bytes of an element, d: heads x head dim; "
        "B: requests of a batch",
        style="dim",
    )


def render_instructions(console: Console, facts: Mapping[str, Any], index: int | None) -> None:
    """Every instruction, of the first slice of each class or of one slice."""
    for piece in _chosen(facts, index):
        console.print(f"\n[bold]Slice {piece['index']}[/bold] (class {piece['class']}), all instructions")
        for part in piece["parts"]:
            console.print(f"  {_PARTS[part['name']]}")
            for one in part["instructions"]:
                weights = [weight["name"] for weight in one["weights"]]
                words = f"    {one['result']} = {one['op']}({', '.join([*one['inputs'], *weights])})"
                console.print(f"{words} {one['type'] or ''}".rstrip(), markup=False, soft_wrap=True)
            console.print(
                f"    gives {', '.join(value['name'] for value in part['gives'])}",
                markup=False,
                soft_wrap=True,
            )


def render_source(console: Console, facts: Mapping[str, Any], index: int | None) -> None:
    """The generated Python of each class, or of one slice's."""
    for piece in _chosen(facts, index):
        kind = facts["classes"][piece["class"]]
        console.print(f"\n# class {kind['index']}: slices {ranges(kind['slices'])}")
        console.print(kind["source"].rstrip(), markup=False, soft_wrap=True)


def render_families(console: Console, rows: Iterable[Mapping[str, Any]]) -> None:
    """A line each."""
    titles = ("family", ">slices", ">classes", ">context\nbytes", ">GEMMs\nbefore q", ">with\nk, v")
    table = _table(*titles, ">during\nattention", ">bytes moved\nper token, layer", "(2 + 2/G) e d")
    for row in rows:
        table.add_row(
            f"[bold]{row['family']}[/bold]",
            f"{row['slices']}",
            f"{row['classes']}",
            f"{row['context_bytes']:,}",
            *(f"{row['products'][part]}" for part in ("query", "keyvalue", "rest")),
            f"{row['transfer_bytes']:,}",
            "[green]agrees[/green]" if row["transfer_agrees"] else "[red]differs[/red]",
        )
    console.print(table)
    console.print(
        "Small models, made up: 4 layers of width 512. `laminabench convert llama` says more of one.",
        style="dim",
    )


def _chosen(facts: Mapping[str, Any], index: int | None) -> list[Any]:
    wanted = [kind["slices"][0] for kind in facts["classes"]] if index is None else [index]
    return [facts["slices"][number] for number in wanted]


def _product(one: Mapping[str, Any]) -> str:
    return f"{one['name']} {'x'.join(map(str, one['shape']))}".rstrip()


def _table(*titles: str, wide: int | None = None) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for place, title in enumerate(titles):
        right = title.startswith(">")
        table.add_column(
            literal(title.removeprefix(">")), justify="right" if right else "left", no_wrap=place != wide
        )
    return table


def _titled(console: Console, title: str, table: Table) -> None:
    console.print(f"\n[bold]{title}[/bold]")
    console.print(table)


def _grouped(
    rows: Iterable[Any], key: Callable[[Any], Hashable], member: Callable[[Any], Any]
) -> list[tuple[Any, list[Any]]]:
    """The members of equal rows, by what they have in common."""
    groups: dict[Any, list[Any]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(member(row))
    return list(groups.items())


def ranges(numbers: Iterable[int]) -> str:
    """`0-3, 5`; from many pieces the first two, and how many numbers there are."""
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
