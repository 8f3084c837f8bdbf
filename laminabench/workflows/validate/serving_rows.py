"""Measured loads from a CSV with the columns of aiconfigurator's sample, whose servers InferenceX started."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from laminabench.catalog.entries import packaged_in
from laminabench.util import safe_parse
from laminabench.util.errors import UserError
from laminabench.workflows.validate.serving import ServerLoad, servers

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


def read_rows(path: Path) -> list[ServerLoad]:
    """Return the loads of a CSV, each once; a UserError names the first line that is none."""
    try:
        text = safe_parse.text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError("serving-rows-unreadable", f"cannot read {path}: {error}; give a CSV file") from error
    lines = csv.DictReader(text.splitlines())
    if missing := [name for name in COLUMNS if name not in (lines.fieldnames or ())]:
        raise UserError(
            "serving-rows-unreadable",
            f"{path} has no column {missing[0]}; it needs {', '.join(COLUMNS)}",
        )
    loads: dict[tuple[Any, ...], ServerLoad] = {}
    for row in lines:
        try:
            load = load_of(row)
        except (ValueError, TypeError, KeyError) as error:
            raise UserError(
                "serving-rows-unreadable",
                f"{path}, line {lines.line_num}: {error}; correct it or leave it out",
            ) from error
        # Repeated exports have the same load with more or fewer digits.
        times = f"{load.ttft_ms:.4g}", f"{load.tpot_ms:.4g}"
        server = tuple(load.server[name] for name in ("model", "device", "version", "precision"))
        lengths = load.prompt_tokens, load.output_tokens, load.concurrency
        loads.setdefault((server, load.layout, lengths, times, load.measured), load)
    if not loads:
        raise UserError("serving-rows-unreadable", f"{path} has no rows; give one load a line")
    return list(loads.values())


def load_of(row: Mapping[str, str]) -> ServerLoad:
    """Return the load of a row; a ValueError says what is wrong with it."""
    model = _model_of(row["model_path"])
    version = row["backend_version"].partition("-")[0] or FIRST_VERSION
    day = row["measured"] or "-"
    device = row["system"].partition("_")[0]
    server = server_of(model, device, version, row["precision"], day)
    if not row["concurrency"]:  # a batch is of each data-parallel group
        row = {**row, "concurrency": str(_count(row, "batch_size") * _count(row, "attention_dp_size", 1))}
    prompt, output, at_once = (_count(row, name) for name in ("isl", "osl", "concurrency"))
    ttft_ms, tpot_ms = (_positive(row, f"silicon_{name}_ms") for name in ("ttft", "tpot"))
    layout = layout_of_row(row, server)
    return ServerLoad(server, layout, prompt, output, at_once, ttft_ms, tpot_ms, day)


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
    chosen = dict(max(sound, key=lambda each: each.get("since", "-")))
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


def layout_of_row(row: Mapping[str, str], server: Mapping[str, Any]) -> str:
    """Return the layout: the sample's data parallelism is none, but where it says nothing of it."""
    tp = _count(row, "tp_size")
    width, spread = (_count(row, name, 1) for name in ("moe_tp_size", "moe_ep_size"))
    if not row["attention_dp_size"]:
        groups = max(1, width * spread // tp)
        return f"{tp * groups}" + (f":dp{groups}" if groups > 1 else f":ep{spread}" if spread > 1 else "")
    dealt = server.get("expert_parallel", spread > 1)
    return f"{tp}:ep{tp}" if dealt and tp > 1 else f"{tp}"


def _count(row: Mapping[str, str], name: str, absent: int | None = None) -> int:
    if absent is not None and not row[name]:
        return absent
    value = _positive(row, name)
    if value != int(value):
        raise ValueError(f"{name} is {row[name]!r}, which is no whole number")
    return int(value)


def _positive(row: Mapping[str, str], name: str) -> float:
    try:
        value = float(row[name])
    except (ValueError, TypeError):
        raise ValueError(f"{name} is {row[name]!r}, which is no number") from None
    if not 0 < value < 1e9:
        raise ValueError(f"{name} is {row[name]!r}; it must be above 0, and below 1e9")
    return value


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(each) if each.isdecimal() else 1 << 30 for each in version.split("."))
