"""`laminabench hardware`, `models` and `costs`: the catalogue of the modelled cluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from laminabench.catalog.entries import Table
from laminabench.cli.flags import price_options
from laminabench.cli.options import COUNT, FILE, PATH, option
from laminabench.cli.output import Output, reporting
from laminabench.render.format import plain
from laminabench.render.terminal import literal, print_facts, table

if TYPE_CHECKING:
    from rich.console import Console

    from laminabench.systems.modelled.h2m2.boards import Board

# Formats of the folders that `costs import` reads.
FORMATS = ("llmservingsim", "aiconfigurator", "vidur")


@click.group()
def hardware() -> None:
    """The catalogue's devices: performance and prices."""


@hardware.command("list")
@price_options
@reporting
def list_hardware(
    price: tuple[str, ...], power: tuple[str, ...], price_basis: str | None, out: Output
) -> None:
    """List all devices."""
    from laminabench.catalog.hardware import priced_devices

    rows = [device.describe() for device in priced_devices(price, price_basis, power).values()]
    titles = ("device", ">bf16 TFLOPS", ">GB", ">GB/s", ">W", ">$/hour", "price is", "what it is")
    out.result({"hardware": rows}, lambda console: console.print(table(titles, map(_device_cells, rows))))


def _device_cells(row: Table) -> tuple[str, ...]:
    price, tflops = row["price"], row["tflops"].get("bf16")
    return (
        f"[bold]{row['name']}[/bold]",
        "-" if tflops is None else f"{tflops:,.3g}" if tflops < 1 else f"{tflops:,.0f}",
        f"{row['memory_gb']:,.0f}",
        f"{row['bandwidth_gb_per_s']:,.0f}",
        "-" if row["power_w"] is None else f"{row['power_w']:,.0f}",
        *(("-", "-") if price is None else (f"{price['usd']:.2f}", f"{price['basis']}, {price['date']}")),
        row["title"],
    )


@hardware.command("show")
@click.argument("name")
@price_options
@reporting
def show_device(
    name: str, price: tuple[str, ...], power: tuple[str, ...], price_basis: str | None, out: Output
) -> None:
    """Show every number of one device, with its source."""
    from laminabench.catalog.hardware import device, priced_devices

    facts = device(name, priced_devices(price, price_basis, power)).describe()
    out.result(facts, lambda console: print_facts(console, facts))


@hardware.command()
@click.argument("name", required=False, metavar="[NAME|FILE.toml]")
@reporting
def boards(name: str | None, out: Output) -> None:
    """List boards with two memories, or show one's parameters with their sources."""
    from laminabench.systems.modelled.h2m2.boards import NAMES, board

    if name is None:
        rows = [_board_facts(board(each), board(NAMES[0])) for each in NAMES]
        columns = (">HBM GB", ">GB/s", ">chips", ">LPDDR GB", ">GB/s", ">chips")
        titles = ("board", *columns, "what it is")
        out.result({"boards": rows}, lambda console: console.print(table(titles, map(_board_cells, rows))))
        return
    chosen = board(name)
    parameters = chosen.assumptions()

    def render(console: Console) -> None:
        console.print(f"[bold]{literal(chosen.title)}[/bold]", soft_wrap=True)
        keys = ("name", "value", "unit", "kind", "source")
        rows = ((literal(plain(row[key])) for key in keys) for row in parameters)
        console.print(table(("parameter", ">value", "", "kind", "source"), rows))

    out.result({"name": chosen.name, "title": chosen.title, "parameters": parameters}, render)


def _board_facts(chosen: Board, original: Board) -> dict[str, object]:
    """Return all numbers, and which of them differ from the original's."""
    facts, usual = chosen.describe(), original.describe()
    varied = {
        key: value for key, value in facts.items() if value != usual[key] and key not in ("name", "title")
    }
    return {**facts, "varied": varied}


def _board_cells(row: dict[str, object]) -> tuple[str, ...]:
    numbers = [
        f"{row[f'{side}_{name}']:,g}"
        for side in ("hbm", "lpddr")
        for name in ("capacity_gb", "bandwidth_gb_per_s", "chips")
    ]
    return (f"[bold]{literal(row['name'])}[/bold]", *numbers, literal(row["title"]))


_PRODUCT = ("matrix product", ">n", ">k", ">layers", ">heads", "in")
_LAYOUT = (">devices", "layout", ">weights GB/device", ">KV bytes/token and device")


@click.group()
def models() -> None:
    """The catalogue's models, and any Hugging Face config.json: shapes, bytes, ways to split."""


@models.command("list")
@reporting
def list_models(out: Output) -> None:
    """List all models with parameters in 10^9; for mixtures also those active per token."""
    from laminabench.catalog.families import load_models

    rows = [each.describe() for each in load_models().values()]
    sizes = (">layers", ">hidden", ">heads", ">KV heads", ">10^9", ">active", ">weights GB")
    titles = ("model", *sizes, ">KV bytes/token", ">MB/request", ">head splits")
    out.result({"models": rows}, lambda console: console.print(table(titles, map(_model_cells, rows))))


def _model_cells(row: Table) -> tuple[str, ...]:
    active, kv_bytes = row.get("active_parameters"), row.get("kv_bytes_per_request")
    return (
        f"[bold]{row['name']}[/bold]",
        *(f"{row[key]:,}" for key in ("layers", "hidden", "heads", "kv_heads")),
        f"{row['parameters'] / 1e9:,.1f}",
        "-" if active is None else f"{active / 1e9:,.1f}",
        f"{row['weight_gb']:,.1f}",
        f"{row['kv_bytes_per_token']:,}",
        "-" if kv_bytes is None else f"{kv_bytes / 1e6:,.1f}",
        " ".join(map(str, row["head_splits"])),
    )


@models.command("show")
@click.argument("name")
@reporting
def show_model(name: str, out: Output) -> None:
    """Show every number of a model: NAME of the catalogue, or the path of a config.json or its folder."""
    from laminabench.catalog.find_model import modelled

    model = modelled(name)
    facts = model.describe()
    if not model.experts:  # whose layers differ
        facts["layer_gemms"] = [gemm._asdict() for gemm in model.layer_gemms(1)]
    products = [
        {**each.gemm._asdict(), "layers": each.layers, "heads": each.heads, "dtype": each.dtype}
        for each in model.products()
    ]
    layouts = [
        {
            "devices": devices,
            "layout": str(layout),
            "weight_gb_per_device": model.weight_bytes_per_worker(layout) / 1e9,
            "kv_bytes_per_token_and_device": model.kv_bytes_per_token * model.kv_share(layout.tp) / layout.pp,
        }
        for devices in (1, 2, 4, 8, 16)
        for layout in model.layouts(devices)
    ]
    shown = {key: value for key, value in facts.items() if key != "layer_gemms"}

    def render(console: Console) -> None:
        print_facts(console, shown)
        console.print(table(_PRODUCT, (map(plain, row.values()) for row in products)))
        # Layouts with stages follow from these, and are many: --json has them.
        flat = [row for row in layouts if "pp" not in str(row["layout"])]
        console.print(table(_LAYOUT, (map(plain, row.values()) for row in flat)))

    out.result({**facts, "products": products, "layouts": layouts}, render)


@click.group()
def costs() -> None:
    """The cost sets of the modelled cluster: every coefficient with its source and error."""


@costs.command("list")
@reporting
def list_costs(out: Output) -> None:
    """List the sets for --costs."""
    from laminabench.catalog.cost_file import COST_SETS, DEFAULT_COSTS, MEASURED_IN, load_costs

    of = {DEFAULT_COSTS: "the default"}
    for device, name in MEASURED_IN.items():
        of[name] = f"{of[name]} and {device}" if name in of else f"the default for {device}"
    rows = [
        {**load_costs(name).describe(), "default": name == DEFAULT_COSTS, "default_for": of.get(name)}
        for name in COST_SETS
    ]

    def render(console: Console) -> None:
        for row in rows:
            mark = f"  ({row['default_for']})" if row["default_for"] else ""
            console.print(f"[bold]{row['name']}[/bold]{mark}  {row['title']}", soft_wrap=True)
            measured, borrowed = (", ".join(row[key]) or "nothing" for key in ("measured", "borrowed"))
            console.print(f"  measured on {measured}; borrowed by {borrowed}")

    out.result({"costs": rows}, render)


@costs.command()
@reporting
def eras(out: Output) -> None:
    """Show vLLM's eras that `compare` models: kernels, limits and hosts, each with its source."""
    from laminabench.catalog.eras import load_eras

    rows = [era.describe() for era in load_eras().values()]

    def render(console: Console) -> None:
        for row in rows:
            print_facts(console, row)
            console.print()

    out.result({"eras": rows}, render)


@costs.command("show")
@click.argument("name")
@option("--device device_name", None, "Device of the coefficients.", "h100")
@option("--tp", COUNT, "Tensor-parallel degree.", 2)
@option("--dtype", None, None, "bf16")
@option("--model", None, "Also the source of each matrix's, operator's and attention's time of this model.")
@option("--attention-kernel kernels", None, "A device's kernel, as for replay: h20=fa3-64.", multiple=True)
@reporting
def show_costs(
    name: str, device_name: str, tp: int, dtype: str, model: str | None, kernels: tuple[str, ...], out: Output
) -> None:
    """Show every coefficient of a set (NAME or a TOML file) for one device: value, kind, source, error."""
    from laminabench.catalog.cost_file import load_costs
    from laminabench.catalog.costs import known_devices
    from laminabench.catalog.find_model import modelled
    from laminabench.catalog.hardware import device
    from laminabench.catalog.provenance import attention_sources, provenance, step_sources

    costs = load_costs(name, kernels)
    on = device(device_name, known_devices([costs]))
    facts: Table = {"set": name, "device": device_name}
    if model is not None:
        shape = modelled(model)
        facts["model"] = shape.name
        facts["sources"] = step_sources(costs, shape, on, tp) + attention_sources(costs, shape, on, tp)
    facts["terms"] = provenance(costs, on, tp, dtype)

    def render(console: Console) -> None:
        if rows := facts.pop("sources", None):
            cells = [
                [
                    row["term"],
                    row["priced_by"],
                    plain(row["errors_percent"].get("held_out_op")),
                    row["source"],
                ]
                for row in rows
            ]
            titles = ("term", "priced by", ">held out %", "source")
            console.print(table(titles, cells, title=f"{model} on {tp}x{device_name}", title_justify="left"))
        print_facts(console, facts)

    out.result(facts, render)


@costs.command("routing")
@click.argument("folder", type=PATH)
@click.argument("prompts", type=PATH)
@option("-o --out --output target", FILE, "The routing file (.csv), for --routing.", required=True)
@option("--token-ids", None, "PROMPTS has token ids, with blanks between.", is_flag=True)
@option("--layers", COUNT, "Run so many layers, from the first; default: all.")
@option("--most-tokens", COUNT, "Tokens of the prompts that are run.", 16384)
@reporting
def measure_routing(
    folder: Path,
    prompts: Path,
    target: Path,
    token_ids: bool,
    layers: int | None,
    most_tokens: int,
    out: Output,
) -> None:
    """Measure how a mixture of experts routes tokens: the checkpoint in FOLDER, the lines of PROMPTS.

    The file has, by ranks and by tokens of a step, the experts with a token on the busiest rank and its part
    of the tokens; as comments, how often each layer's experts were chosen.
    """
    from laminabench.calibrate.routers import read_sequences, routed
    from laminabench.catalog.routing import counted, write_routing
    from laminabench.runs.replace import require_writable

    require_writable(target)
    sequences = read_sequences(folder, prompts, most_tokens, token_ids=token_ids)
    with out.progress("routing", unit="tokens") as report:
        measured = routed(folder, sequences, layers, report)
    curve = counted(measured.chosen, measured.experts)
    facts, comments = measured.describe(folder, prompts, sequences)
    write_routing(curve, target, comments)
    out.note(f"wrote {target}")
    names = ("ranks", "tokens", "active", "busiest")
    columns = zip(*(getattr(curve, name) for name in names), strict=True)
    points = [dict(zip(names, point, strict=True)) for point in columns]
    facts |= {"file": str(target), "curve": points}
    out.result(facts, lambda console: _print_routing(console, facts))


def _print_routing(console: Console, facts: Table) -> None:
    """Print the curve of the most ranks of a node, next to the popularity that is assumed without it."""
    from laminabench.catalog.layout import NODE_DEVICES
    from laminabench.catalog.routing import sampled

    ranks = max(point["ranks"] for point in facts["curve"] if point["ranks"] <= NODE_DEVICES)
    local = facts["experts"] // ranks
    rows = []
    for point in (each for each in facts["curve"] if each["ranks"] == ranks):
        assumed = sampled(facts["experts"], facts["top_k"], ranks, point["tokens"])
        most = assumed.pairs * ranks / (point["tokens"] * facts["top_k"])
        numbers = (local * point["active"], assumed.active, point["busiest"], most)
        rows.append([f"{point['tokens']:,.0f}", *(f"{float(number):.2f}" for number in numbers)])
    titles = (">tokens", ">active experts", ">assumed", ">tokens over a mean rank's", ">assumed")
    title = f"{facts['model']}: busiest of {ranks} ranks with {local} experts each"
    console.print(table(titles, rows, title=literal(title), title_justify="left"))


@costs.command("import")
@click.argument("folders", nargs=-1, required=True, type=PATH)
@option("--format form", click.Choice(FORMATS), "Format of the folders.", required=True)
@option("-o --out --output target", FILE, "The cost set (.toml).", required=True)
@option("--model models", None, "A model that the catalogue lacks: its config.json.", multiple=True)
@option("--device devices", None, "A device by its name in the folder: RTX4090=rtx-4090.", multiple=True)
@option("--framework", None, "aiconfigurator: whose kernels, vllm (default), sglang or trtllm.")
@option("--link links", None, "An all-reduce over 2 of a device: rtx-4090=20us,16GB/s.", multiple=True)
@reporting
def import_costs(
    folders: tuple[Path, ...],
    form: str,
    target: Path,
    models: tuple[str, ...],
    devices: tuple[str, ...],
    links: tuple[str, ...],
    framework: str | None,
    out: Output,
) -> None:
    """Make a cost set from FOLDERS that another project's profiler wrote, and print its errors."""
    from laminabench.catalog.cost_file import write_costs
    from laminabench.catalog.importing import error_rows, imported

    costs = imported(form, folders, target.stem, models, devices, links, framework)
    write_costs(costs, target, f"Imported by `laminabench costs import --format {form}`.")
    out.note(f"wrote {target}")
    rows = error_rows(costs)
    out.result({"set": str(target), "errors": rows}, lambda console: _print_errors(console, rows))


def _print_errors(console: Console, rows: list[Table]) -> None:
    # Not every term has every kind of error.
    names = list(dict.fromkeys(key for row in rows for key in row))
    cells = [[row.get(name, "") for name in names] for row in rows]
    cells = [[f"{value:.1f}" if isinstance(value, float) else str(value) for value in row] for row in cells]
    titles = [name.replace("_", " ") for name in names]
    console.print(table(titles, cells, title="mean absolute errors in percent", title_justify="left"))
