"""Recorded runs of real servers: when each request came, got its first token and its last.

Stored as one file of numbers (TOML), or read from a folder of LLMServingSim's benchmark.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, TypedDict

import numpy as np
from msgspec import Meta, ValidationError, convert

from laminabench.catalog.cost_file import COST_SETS, DEFAULT_COSTS, load_costs
from laminabench.catalog.entries import from_path, packaged_in
from laminabench.catalog.families import load_models, same_sizes
from laminabench.catalog.hardware import load_devices
from laminabench.catalog.server_host import steps_of
from laminabench.requests.fields import MAX_COUNT, Count
from laminabench.requests.replay import of_text
from laminabench.runs.format import MANIFEST
from laminabench.runs.manifest import NUMBERS
from laminabench.runs.read import Run, read_run
from laminabench.runs.status import DONE
from laminabench.systems.registry import SERVER
from laminabench.traces.table import MAX_TOKENS, Float64, Int32, PrefixBlocks, Trace, TraceMeta
from laminabench.util import safe_parse
from laminabench.util.atomic import replacing
from laminabench.util.errors import UserError
from laminabench.util.progress import SILENT
from laminabench.util.suggest import nearest
from laminabench.workflows.replay.run import load

# Of vLLM's prefix cache.
BLOCK_TOKENS = 16
US = 1e-6
_MOST_PROMPT_TOKENS = 1 << 30
_MOST_LINES = 1 << 30
FOLDER = "recorded"
# The owner of a vLLM server's models, as it lists them.
VLLM = "vllm"


@dataclass(frozen=True, slots=True)
class Recording:
    """A server's recording: its setup, requests and answer times, in seconds from the first arrival."""

    name: str
    about: Mapping[str, Any]  # source, licence, engine, model, deployment, costs and the server's settings
    arrival_s: Float64
    prompt_tokens: Int32
    output_tokens: Int32
    first_token_s: Float64
    last_token_s: Float64
    # The request with which each has most of its leading blocks in common, and how many; none: -1 and 0.
    like: Int32
    blocks: Int32
    # How far another simulator was off, by metric: mean, p50, p90, p99, in percent.
    others: Mapping[str, Mapping[str, Sequence[float]]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.arrival_s)

    @property
    def device(self) -> str:
        return re.split("[:+]", str(self.about["deployment"]).split("x", 1)[1])[0]

    def trace(self) -> Trace:
        """Return the requests, with shared blocks of prompts."""
        rows: list[list[int]] = []
        fresh = 0
        for prompt, like, blocks in zip(self.prompt_tokens, self.like, self.blocks, strict=True):
            own = int(prompt) // BLOCK_TOKENS - int(blocks)
            rows.append([*(rows[like][:blocks] if blocks else []), *range(fresh, fresh + own)])
            fresh += own
        return Trace(
            self.arrival_s,
            self.prompt_tokens,
            self.output_tokens,
            TraceMeta(self.name, block_tokens=BLOCK_TOKENS),
            PrefixBlocks.from_lists(rows),
        )

    def write(self, target: Path) -> None:
        """Write one file; times in microseconds."""
        lines = [f"{key} = {json.dumps(value)}" for key, value in {"name": self.name, **self.about}.items()]
        lines += ["", "[requests]"]
        for name in _COLUMNS:
            column = getattr(self, name)
            rounded = np.rint(column / US) if name.endswith("_s") else column
            lines.append(f'{_called(name)} = "{" ".join(str(int(value)) for value in rounded)}"')
        for simulator, errors in self.others.items():
            lines += ["", f"[others.{simulator}]", *(f"{key} = {list(each)}" for key, each in errors.items())]
        with replacing(target) as temporary:
            temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")


_COLUMNS = ("arrival_s", "prompt_tokens", "output_tokens", "first_token_s", "last_token_s", "like", "blocks")
# vLLM's defaults, which not every version of it writes down.
AS_TODAY = {"host_async": True, "prefix_caching": True}


class SetUp(TypedDict, total=False):
    """Types and limits of what a prediction reads of a server's settings; the rest is only shown."""

    model: str
    deployment: Annotated[str, Meta(pattern="x")]
    costs: str
    source: str
    host: str
    host_async: bool
    prefix_caching: bool
    max_num_seqs: Count
    max_batched_tokens: Count
    kv_tokens: Count
    graph_rows: Annotated[int, Meta(ge=0, le=MAX_COUNT)]
    memory_utilization: Annotated[float, Meta(gt=0, le=1)]


# What a server's settings are called here, as far as they must be there.
_NEEDED = ("model", "deployment", "costs", "max_num_seqs", "max_batched_tokens", "source")


def _called(column: str) -> str:
    """Return its name in a file, where times are in microseconds."""
    return f"{column.removesuffix('_s')}_us" if column.endswith("_s") else column


def names() -> list[str]:
    """Return the names of the recordings in the package."""
    folder = resources.files(__package__).joinpath(FOLDER)
    return sorted(each.name.removesuffix(".toml") for each in folder.iterdir() if each.name.endswith(".toml"))


def packaged_recording(name: str) -> Recording:
    """Return the packaged recording of that name."""
    if name not in names():
        raise UserError("validation-unknown", f"no recording {name!r}; {nearest(name, names(), 100)}")
    return _from_table(packaged_in(__package__, FOLDER, f"{name}.toml"), name)


def read(path: Path, **settings: Any) -> Recording:
    """Read a file written by `write`, a Run, or a folder of LLMServingSim's benchmark; settings go first."""
    if (path / MANIFEST).is_file():
        return _from_run(path, settings)
    if path.is_dir():
        return _from_folder(path, settings)
    return _from_table({**from_path(path), **settings}, str(path))


def _from_table(table: dict[str, Any], where: str) -> Recording:
    try:
        columns = dict(table.pop("requests"))
        values: dict[str, Any] = {}
        for name in _COLUMNS:
            numbers = np.array(str(columns[_called(name)]).split(), np.int64)
            values[name] = numbers * US if name.endswith("_s") else numbers.astype(np.int32)
        if len({len(column) for column in values.values()}) != 1 or not len(values["like"]):
            raise ValueError("its columns are not of one length")
        _require_requests(**values)
        others = convert(table.pop("others", {}), dict[str, dict[str, list[float]]])
    except (KeyError, ValueError, TypeError, OverflowError) as error:
        raise UserError(
            "validation-bad-recording", f"{where} is no recording: {error}; `validate --save` writes one"
        ) from error
    name = str(table.pop("name", where))
    return Recording(name, require_set_up(where, AS_TODAY | table), others=others, **values)


def _require_requests(
    prompt_tokens: Int32, output_tokens: Int32, like: Int32, blocks: Int32, **times: Float64
) -> None:
    """Raise a ValueError if a server cannot have had these requests."""
    if min(prompt_tokens.min(), output_tokens.min()) < 1 or prompt_tokens.max() > MAX_TOKENS:
        raise ValueError(f"a request has below 1 or above {MAX_TOKENS:,} tokens")
    if prompt_tokens.sum(dtype=np.int64) > _MOST_PROMPT_TOKENS:
        raise ValueError(f"its prompts have more than {_MOST_PROMPT_TOKENS:,} tokens")
    if (
        (like >= np.arange(len(like))).any()
        or (blocks < 0).any()
        or (blocks[like < 0] > 0).any()
        or (blocks > prompt_tokens // BLOCK_TOKENS).any()
    ):
        raise ValueError("a prompt begins as one that is not before it")
    if not all((column >= 0).all() for column in times.values()):
        raise ValueError("a time is before the first arrival")


def _from_run(directory: Path, settings: dict[str, Any]) -> Recording:
    """Return the completed requests of a live Run."""
    run = read_run(directory)
    if run.manifest.backend != "live":
        numbers = NUMBERS[run.manifest.backend]
        raise UserError("validation-bad-recording", f"{directory} is {numbers}; give a live Run")
    requests, choices = run.outcome.requests, run.manifest.choices
    first, last = requests["first_token_s"], requests["finished_s"]
    there = np.isfinite(first) & np.isfinite(last) & (requests["status"] == DONE)
    order = np.flatnonzero(there)[np.argsort(requests["arrival_s"][there], kind="stable")]
    if not len(order):
        raise UserError("validation-bad-recording", f"{directory} has no request that was answered")
    start = requests["arrival_s"][order[0]]
    about = {
        "model": run.manifest.model_name,
        "engine": run.manifest.system,
        "source": f"{run.manifest.command}, on {run.manifest.host.cpu}",
        **AS_TODAY,
        "max_batched_tokens": 2048,
        **_software_of(run, settings.get("server_version")),
        **{
            name: choices[flag]
            for name, flag in (("max_num_seqs", "max-num-seqs"), ("max_batched_tokens", "max-batched-tokens"))
            if flag in choices
        },
    }
    try:
        like, blocks = _shared(_blocks_of(run), run.prompt_tokens, order)
    except UserError as error:
        like, blocks = _shared(None, run.prompt_tokens, order)
        about["prefixes"] = f"not known: {error}"
    return Recording(
        directory.name,
        require_set_up(str(directory), about | settings),
        requests["arrival_s"][order] - start,
        run.prompt_tokens[order],
        run.output_tokens[order],
        first[order] - start,
        last[order] - start,
        like=like,
        blocks=blocks,
    )


def _software_of(run: Run, release: str | None) -> dict[str, Any]:
    """Return a server's own name and release, or the given release of vLLM, with how it schedules."""
    facts = run.manifest.deployment.facts or {}
    name, version = (VLLM, release) if release else (facts.get("server"), facts.get("server_version"))
    if not isinstance(name, str) or not isinstance(version, str):
        return {}
    about: dict[str, Any] = {"engine": f"{name} {version}"}
    if name == VLLM:
        about |= {"server_version": version, "host_async": steps_of(version).asynchronous}
    return about


def _blocks_of(run: Run) -> Trace | None:
    """Return the trace with shared prompt prefixes; None if there are none."""
    if run.manifest.system != SERVER or run.manifest.request is None:
        return None  # prompts of the others are drawn, each for itself
    trace = load(of_text(run.manifest.request, str(run.directory)), SILENT)
    if len(trace) != len(run.prompt_tokens) or (trace.prompt_tokens != run.prompt_tokens).any():
        raise UserError(
            "validation-other-trace", f"{trace.meta.name} here is not what {run.directory} was replayed of"
        )
    return trace if trace.prefix_blocks is not None else None


def _shared(trace: Trace | None, prompt_tokens: Int32, order: Any) -> tuple[Int32, Int32]:
    """Return the shared prefixes (see `_sharing`) of a trace's rows in this order."""
    if trace is None:
        return np.full(len(order), -1, np.int32), np.zeros(len(order), np.int32)
    assert trace.prefix_blocks is not None
    like, shared = _sharing([trace.prefix_blocks[row].tolist() for row in order], 1)
    tokens = np.minimum(shared * trace.meta.block_tokens, prompt_tokens[order])
    return like, (tokens // BLOCK_TOKENS).astype(np.int32)


def require_set_up(where: str, about: dict[str, Any]) -> dict[str, Any]:
    """Return `about`; raise a UserError if settings needed for a prediction are missing or impossible."""
    if missing := [name for name in _NEEDED if name not in about]:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in missing)
        raise UserError("validation-bad-recording", f"{where} does not say how it was set up; give {flags}")
    try:
        convert(about, SetUp)
    except ValidationError as error:
        raise UserError(
            "validation-bad-recording", f"{where} is of no server that can be: {error}"
        ) from error
    return about


def _from_folder(folder: Path, settings: dict[str, Any]) -> Recording:
    try:
        meta = safe_parse.json_value(safe_parse.content(folder / "meta.json"))
        requests = _lines(folder / "requests.jsonl")
        prompts = [each["input_tok_ids"] for each in _lines(folder / "workload.jsonl")]
        engine = meta["engine_kwargs"]
        # Arrivals are on another clock than the rest; no request can have queued before it arrived.
        shift = min(each["queued_ts"] - each["arrival_time"] for each in requests)
        order = sorted(range(len(requests)), key=lambda i: requests[i]["arrival_time"])
        rows = [requests[i] for i in order]
        start = rows[0]["arrival_time"] + shift
        columns: dict[str, Any] = {
            "arrival_s": np.array([row["arrival_time"] + shift - start for row in rows]),
            "first_token_s": np.array([row["first_token_ts"] - start for row in rows]),
            "last_token_s": np.array([row["last_token_ts"] - start for row in rows]),
            "prompt_tokens": np.array([row["input_toks"] for row in rows], np.int32),
            "output_tokens": np.array([row["output_toks"] for row in rows], np.int32),
        }
        tokens = [prompts[i] for i in order]
        if [len(each) for each in tokens] != columns["prompt_tokens"].tolist():
            raise ValueError("prompts of other lengths than the requests'")
        about = {
            "engine": f"vLLM {meta['vllm_version']}",
            "max_num_seqs": engine["max_num_seqs"],
            "max_batched_tokens": engine["max_num_batched_tokens"],
            **AS_TODAY,
            **_set_up_in(meta),
        }
        if cache := meta.get("kv_cache"):
            # vLLM keeps a block for itself.
            about["kv_tokens"] = (cache["num_gpu_blocks"] - 1) * cache["block_size"]
    except OSError as error:
        raise UserError("validation-bad-recording", f"{folder} is no recording: {error}") from error
    except (KeyError, IndexError, ValueError, TypeError) as error:
        raise UserError(
            "validation-bad-recording",
            f"{folder} is no recording: {type(error).__name__} at {error} in meta.json, requests.jsonl or "
            "workload.jsonl",
        ) from error
    columns["like"], columns["blocks"] = _sharing(tokens, BLOCK_TOKENS)
    about = require_set_up(
        str(folder), {"source": str(meta.get("dataset_path", folder.name))} | about | settings
    )
    return Recording(folder.name, about, *(columns[name] for name in _COLUMNS))


def _set_up_in(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a meta.json says of model, devices and scheduling, as far as the catalogue knows them."""
    scheduler = _part(meta, "resolved_config", "scheduler_config")
    cache = _part(meta, "resolved_config", "cache_config") | _part(meta, "kv_cache")
    about: dict[str, Any] = {
        "host_async": scheduler.get("async_scheduling", steps_of(str(meta["vllm_version"])).asynchronous)
    }
    settings = {"enable_prefix_caching": "prefix_caching", "gpu_memory_utilization": "memory_utilization"}
    about |= {ours: cache[theirs] for theirs, ours in settings.items() if cache.get(theirs) is not None}
    called = str(meta.get("model", ""))
    if named := [name for name, each in load_models().items() if called and same_sizes(called, each.source)]:
        about["model"] = named[0]
    title = _part(meta, "hardware").get("device_name")
    for device in (name for name, each in load_devices().items() if each.title == title):
        about["deployment"] = f"{_part(meta, 'engine_kwargs').get('tensor_parallel_size', 1)}x{device}"
        about["costs"] = [
            DEFAULT_COSTS,
            *(each for each in COST_SETS if device in load_costs(each).attention),
        ][-1]
    return about


def _part(meta: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Return an object within objects; an empty one where there is none."""
    part: Any = meta
    for name in names:
        part = part.get(name) if isinstance(part, Mapping) else None
    return dict(part) if isinstance(part, Mapping) else {}


def _sharing(prompts: Sequence[Sequence[int]], step: int) -> tuple[Int32, Int32]:
    """Return each prompt's longest match with an earlier one, and its length in full steps."""
    first: dict[tuple[int, ...], int] = {}  # by what there is up to a step's end
    like, steps = np.full(len(prompts), -1, np.int32), np.zeros(len(prompts), np.int32)
    for row, prompt in enumerate(prompts):
        for end in range(step, len(prompt) + 1, step):
            earlier = first.setdefault(tuple(prompt[:end]), row)
            if earlier != row:
                like[row], steps[row] = earlier, end // step
    return like, steps


def _lines(path: Path) -> list[dict[str, Any]]:
    lines = safe_parse.text(path, _MOST_LINES).split("\n")
    return [safe_parse.json_value(line) for line in lines if line.strip()]
