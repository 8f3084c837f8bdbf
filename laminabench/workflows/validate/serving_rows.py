"""Measured loads from a CSV with the columns of aiconfigurator's sample, whose servers InferenceX started."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec

from laminabench.catalog.entries import packaged_in
from laminabench.util.errors import UserError
from laminabench.util.json import JsonObject
from laminabench.workflows.validate.csv_rows import (
    MOST_REQUESTS,
    AtOnce,
    Count,
    Positive,
    Refused,
    Whole,
    read,
)
from laminabench.workflows.validate.serving import Judged, Pool, ServerLoad, servers

COLUMNS = (
    *("system", "model_path", "backend_version", "precision", "isl", "osl", "batch_size"),
    *("tp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size"),
    *("silicon_ttft_ms", "silicon_tpot_ms", "concurrency", "measured"),
)
# Images of the benchmark's first rows, which do not say their version.
FIRST_VERSION = "0.10.2"
# Of the names of models that are the same but for it.
_FORMAT = re.compile("-(FP8|FP4|NVFP4|INT4|W4A16)$")
# Of a server of one version, and not of another's.
_OF_VERSION = ("sync", "piecewise", "fit", "off")


class Cells(msgspec.Struct):
    """The cells of a row that are read."""

    system: str
    model_path: str
    precision: str
    isl: Whole
    osl: Annotated[int, msgspec.Meta(gt=1, lt=10**9)]  # one token has no time after it
    tp_size: Whole
    silicon_ttft_ms: Positive
    silicon_tpot_ms: Positive
    backend_version: str = ""
    measured: str = "-"
    concurrency: AtOnce | None = None
    batch_size: AtOnce | None = None  # of each data-parallel group
    attention_dp_size: AtOnce | None = None
    moe_tp_size: Whole = 1
    moe_ep_size: Whole = 1
    # Whether attention is data parallel over tp_size devices, each with requests of its own.
    dp_attention: bool = False
    # Of a server with workers for prompts alone, else 0.
    prefill_num_workers: Count = 0
    prefill_tp: Count = 0
    prefill_ep: Count = 0
    prefill_dp_attention: bool = False
    decode_num_workers: Count = 0
    decode_tp: Count = 0
    decode_ep: Count = 0
    decode_dp_attention: bool = False


def read_rows(path: Path, refused: list[Refused]) -> list[ServerLoad]:
    """Return the loads of a CSV, each once, and add the rows that cannot be priced to `refused`.

    Raise a UserError if all are such.
    """
    try:
        rows = read(path, Cells, COLUMNS, load_of, refused)
    except ValueError as error:
        raise UserError("serving-rows-unreadable", f"{error}; correct it or leave it out") from error
    loads: dict[tuple[Any, ...], ServerLoad] = {}
    for load in rows:
        # Repeated exports have the same load with more or fewer digits.
        times = f"{load.ttft_ms:.4g}", f"{load.tpot_ms:.4g}"
        server = tuple(load.server[name] for name in ("model", "device", "version", "precision"))
        lengths = load.prompt_tokens, load.output_tokens, load.concurrency
        loads.setdefault((server, load.layout, load.pool, lengths, times, load.measured), load)
    return list(loads.values())


def unpriced(refused: Iterable[Refused], predictions: Iterable[Judged]) -> JsonObject:
    """Return the rows without a prediction and why, under a key; nothing where there are none."""
    rows = [{"row": f"line {each.line}", "why": each.why} for each in refused]
    for each in predictions:
        if each.why_not:
            load = each.point
            lengths = f"{load.prompt_tokens} and {load.output_tokens} tokens, {load.concurrency} at once"
            rows.append({"row": f"{load.model} on {load.served_on}, {lengths}", "why": each.why_not})
    return {"unpriced": rows} if rows else {}


def load_of(row: Cells) -> ServerLoad:
    """Return the load of a row; a ValueError says what is wrong with it."""
    version = row.backend_version.partition("-")[0] or FIRST_VERSION
    device = row.system.partition("_")[0]
    server = server_of(_model_of(row.model_path), device, version, row.precision, row.measured)
    at_once = row.concurrency or (row.batch_size or 0) * (row.attention_dp_size or 1)
    if not at_once:
        raise ValueError("it has neither concurrency nor batch_size")
    if at_once > MOST_REQUESTS:
        raise ValueError(f"it has {at_once:,} requests at once; {MOST_REQUESTS:,} are simulated at most")
    times, pool = (row.silicon_ttft_ms, row.silicon_tpot_ms), pool_of_row(row)
    if pool is None:
        layout = layout_of_row(row, server)
    else:
        layout = layout_of(row.decode_tp or row.tp_size, row.decode_ep, row.decode_dp_attention)
    return ServerLoad(server, layout, row.isl, row.osl, at_once, *times, row.measured, pool)


def pool_of_row(row: Cells) -> Pool | None:
    """Return the workers of a server with some for prompts alone; a ValueError says what is missing."""
    given = (row.prefill_num_workers, row.prefill_tp, row.decode_num_workers)
    if not any(given):
        return None
    if not all(given):
        raise ValueError(
            "a server with workers for prompts has prefill_num_workers, prefill_tp and decode_num_workers"
        )
    layout = layout_of(row.prefill_tp, row.prefill_ep, row.prefill_dp_attention)
    return Pool(row.prefill_num_workers, layout, row.decode_num_workers)


def layout_of(tp: int, ep: int, dp_attention: bool) -> str:
    """Return how so many devices share a model, with attention by tensor or by data parallelism."""
    shared = (f"dp{tp}" if dp_attention and tp > 1 else "") + (f"ep{ep}" if ep > 1 else "")
    return f"{tp}:{shared}" if shared else f"{tp}"


def server_of(model: str, device: str, version: str, precision: str, day: str) -> Mapping[str, Any]:
    """Return the settings of a server: of its version and day, or of the nearest version before.

    A device without any has those of another one.
    """
    table = packaged_in(__package__, "serving.toml")
    if device not in table["memory"]:
        raise ValueError(f"system {device!r} is none of {', '.join(table['memory'])}")
    tables = table["tables"].get(device, device)
    of_model = [each for each in servers() if (each["model"], each["precision"]) == (model, precision)]
    if not of_model:
        raise ValueError(f"no settings are known of {model} in {precision}")
    candidates = [each for each in of_model if each["device"] == tables] or of_model

    def order(each: Mapping[str, Any]) -> tuple[Any, ...]:
        numbers = _numbers(each["version"])
        return numbers <= _numbers(version), numbers

    nearest = max(candidates, key=order)["version"]
    own = [each for each in candidates if each["version"] == nearest and each.get("since", "-") <= day]
    sound = [each for each in own if "off" not in each] or own or candidates
    latest = max(sound, key=lambda each: str(each.get("since", "-")))
    chosen = dict(latest)
    if chosen["version"] != version or chosen["device"] != tables:
        chosen = {name: value for name, value in chosen.items() if name not in _OF_VERSION}
    return {**chosen, "device": device, "tables": tables, "version": version}


def _model_of(path: str) -> str:
    """Return the catalogue's name of a model, whatever formats its weights are in."""
    sample = packaged_in(__package__, "serving.toml")["models"]
    names = {_FORMAT.sub("", known.rpartition("/")[2]): name for known, name in sample.items()}
    name = _FORMAT.sub("", path.rpartition("/")[2])
    if name not in names:
        raise ValueError(f"model_path {path!r} is none of {', '.join(sample)}")
    return str(names[name])


def layout_of_row(row: Cells, server: Mapping[str, Any]) -> str:
    """Return the layout: the sample's data parallelism is none, but where it says nothing of it."""
    tp, spread = row.tp_size, row.moe_ep_size
    if row.dp_attention:
        return layout_of(tp, min(spread, tp), dp_attention=True)
    if row.attention_dp_size is None:
        groups = max(1, row.moe_tp_size * spread // tp)
        return f"{tp * groups}" + (f":dp{groups}" if groups > 1 else f":ep{spread}" if spread > 1 else "")
    expert_parallel = server.get("expert_parallel", spread > 1)
    return f"{tp}:ep{tp}" if expert_parallel and tp > 1 else f"{tp}"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(each) if each.isdecimal() else 1 << 30 for each in version.split("."))
