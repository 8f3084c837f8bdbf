"""A replay as it is asked for: every choice in one typed value, with a text form that a Run keeps.

The command line, a --config file, a sweep's point, a case of `check` and a Run's manifest are all this. A
choice that is None was not made: the system settles it. A flag of `laminabench replay` is declared here and
nowhere else; the command line, its help and the keys of files are made of the fields.
"""

from __future__ import annotations

import json
import math
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import msgspec
import msgspec.structs
from msgspec import Meta

from laminabench.errors import UserError
from laminabench.nearest import nearest

# The headings of `laminabench replay --help`, in their order.
WORKLOAD = "Workload"
SYSTEM = "System and hardware"
LIVE = "Live replays"
SERVER = "A server (--system openai)"
CUTS = "Cuts of the trace"
OUTPUT = "Output"
GROUPS = (WORKLOAD, SYSTEM, LIVE, SERVER, CUTS, OUTPUT)

# What stands in place of a secret.
HIDDEN = "***"


@dataclass(frozen=True, slots=True)
class Flag:
    """How a field is given on the command line; its name there is the field's, with dashes."""

    group: str
    help: str
    metavar: str | None = None
    also: str = ""  # another spelling
    opposite: bool = False  # of a switch: --no-NAME is one too
    kind: Literal["", "file", "folder", "seconds"] = ""  # of a text: "seconds" is a stretch, as A:B


Count = Annotated[int, Meta(ge=1)]
UpTo64 = Annotated[int, Meta(ge=1, le=64)]
Positive = Annotated[float, Meta(gt=0, le=1e300)]
Seconds = Annotated[float, Meta(gt=0, le=1e6)]


def _key(name: str) -> str:
    return "out" if name == "directory" else name.replace("_", "-")


class ReplayRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename=_key):
    """Every choice of a replay. Which of them a system takes, its package says."""

    trace: Annotated[str | None, Flag(WORKLOAD, "Catalogue name, imported name or file.")] = None
    mode: Annotated[
        Literal["saturate", "open", "closed"],
        Flag(WORKLOAD, "Queue never empty, the trace's own arrivals, or fixed concurrency."),
    ] = "saturate"
    concurrency: Annotated[
        Count | None, Flag(WORKLOAD, "With --mode closed: requests in the system at once.")
    ] = None
    slo_tbt_ms: Annotated[
        Annotated[float, Meta(gt=0, le=1e9)], Flag(WORKLOAD, "Time between tokens that counts as good.")
    ] = 100.0
    slo_ttft_ms: Annotated[
        Annotated[float, Meta(gt=0, le=1e9)] | None,
        Flag(WORKLOAD, "With --prefill: time to the first token that counts as good."),
    ] = None
    policy: Annotated[
        str | None, Flag(WORKLOAD, "Who goes first: fifo (default), sjf, deadline, module:Class.")
    ] = None

    system: Annotated[str, Flag(SYSTEM, "What to replay against.")] = "lamina"
    deployment: Annotated[
        str | None,
        Flag(SYSTEM, "4xh100, or model+attention workers: 2xh100+4xh20; v2 Table 5's or 1xcpu+1xcpu."),
    ] = None
    model: Annotated[
        str | None, Flag(SYSTEM, "Name, config.json or folder; llama3-70b, or live llama-mini.")
    ] = None
    backend: Annotated[
        Literal["modelled", "live"] | None,
        Flag(SYSTEM, "Hardware one need not have (modelled, default), or the engine on this machine."),
    ] = None
    costs: Annotated[str | None, Flag(SYSTEM, "Cost set, or a TOML file; vllm-0.14.")] = None
    network: Annotated[
        str | None,
        Flag(
            SYSTEM,
            "fhbn, nccl, shm, ..., or 40us,42GB/s; the paper's. Live: auto, shm, gloo, verbs, mlx5.",
        ),
    ] = None
    batches: Annotated[
        UpTo64 | Literal["auto"] | None,
        Flag(SYSTEM, "lamina: how many take turns, 1 is serial; 2. Live: or auto."),
    ] = None
    pipelining: Annotated[
        Literal["serial", "rotational", "fixed"] | None, Flag(SYSTEM, "lamina: how they take turns.")
    ] = None
    pipeline_parallel: Annotated[
        UpTo64 | None, Flag(SYSTEM, "lamina: stages the model workers' layers are split in; 1.")
    ] = None
    partition: Annotated[
        Literal["heads", "requests"] | None, Flag(SYSTEM, "lamina: what attention workers share out.")
    ] = None
    overlap: Annotated[
        bool | None,
        Flag(SYSTEM, "lamina: send q before k and v exist; live not unless asked for.", opposite=True),
    ] = None
    stream_chunks: Annotated[UpTo64 | None, Flag(SYSTEM, "Mini-batches of a transfer: v1 4, lamina 1.")] = (
        None
    )
    stream_along: Annotated[
        Literal["requests", "heads"] | None, Flag(SYSTEM, "What a mini-batch is a part of.")
    ] = None
    kv_overcommit: Annotated[
        Annotated[float, Meta(ge=1, le=100)] | None,
        Flag(SYSTEM, "lamina: KV beyond device memory, paged to the host; 1."),
    ] = None
    host_async: Annotated[
        bool | None, Flag(SYSTEM, "The host prepares an iteration while the one before it runs.")
    ] = None
    admission: Annotated[
        Literal["reserve", "grow"] | None,
        Flag(SYSTEM, "KV for the final length at once (reserve, default), or as it grows, with preemption."),
    ] = None
    prefix_sharing: Annotated[
        bool | None,
        Flag(
            SYSTEM,
            "Store prompt prefixes that the trace marks as equal once; --prefill: unless asked not to.",
            opposite=True,
        ),
    ] = None
    kv_tokens: Annotated[
        Count | None, Flag(SYSTEM, "KV memory, of all workers together; else what fits.")
    ] = None
    max_num_seqs: Annotated[
        Annotated[int, Meta(ge=1, le=1 << 20)] | None, Flag(SYSTEM, "Most running at once; live 256.")
    ] = None
    block_size: Annotated[
        Annotated[int, Meta(ge=1, le=4096)] | None,
        Flag(SYSTEM, "KV tokens in a block: vllm 16, lamina 1."),
    ] = None
    gpu_memory_utilization: Annotated[
        Annotated[float, Meta(ge=0.1, le=1)] | None,
        Flag(SYSTEM, "Share of a device's memory in use; 0.9.", metavar="X"),
    ] = None
    prefill: Annotated[
        UpTo64 | Literal["off", "colocated", "model"] | None,
        Flag(
            SYSTEM,
            "Prompts: there already (off, default), or computed beside decoding (colocated). Live: made up "
            "(off), computed by the model workers (model), or by N others.",
        ),
    ] = None
    max_batched_tokens: Annotated[
        Annotated[int, Meta(ge=1, le=1 << 17)] | None,
        Flag(SYSTEM, "--prefill: tokens that a batch computes in an iteration; 2048."),
    ] = None
    mapping: Annotated[str | None, Flag(SYSTEM, "h2m2: who says what is on which side; greedy.")] = None
    board: Annotated[
        str | None, Flag(SYSTEM, "h2m2: another board than the device's.", metavar="NAME|FILE")
    ] = None
    price: Annotated[
        tuple[str, ...],
        Flag(SYSTEM, "Price per hour instead of the catalogue's, repeatable.", metavar="DEVICE=USD"),
    ] = ()
    power: Annotated[
        tuple[str, ...],
        Flag(SYSTEM, "Rated power instead of the catalogue's, repeatable.", metavar="DEVICE=WATTS"),
    ] = ()
    price_basis: Annotated[
        Literal["rent", "purchase"] | None,
        Flag(SYSTEM, "Rents, or purchases over four years with power; rent where there is one by default."),
    ] = None

    oversubscribe: Annotated[bool | None, Flag(LIVE, "More workers than cores may share them.")] = None
    dtype: Annotated[
        Literal["bf16", "fp16", "fp32"] | None, Flag(LIVE, "Of weights and KV; else the model's.")
    ] = None
    chaos: Annotated[
        tuple[str, ...],
        Flag(
            LIVE,
            "Repeatable: kill a worker, as attention:1@t=3s, random@tokens=500, random*50.",
            metavar="WHO[=HOW]@WHEN",
        ),
    ] = ()
    ray: Annotated[
        str | None,
        Flag(LIVE, "Workers as actors of this Ray cluster, auto or host:port.", metavar="ADDRESS"),
    ] = None
    tensor_parallel: Annotated[
        UpTo64 | None,
        Flag(
            LIVE, "vllm: workers that share the model; a CPU's cores are one's threads, GPUs a worker each."
        ),
    ] = None
    max_model_len: Annotated[Count | None, Flag(LIVE, "vllm: longest request; else the trace's longest.")] = (
        None
    )
    enforce_eager: Annotated[
        bool | None, Flag(LIVE, "vllm: compile nothing; starts sooner, runs slower.")
    ] = None
    runner_timeout: Annotated[
        Seconds | None,
        Flag(LIVE, "vllm: it hangs if nothing is heard from it for so long; 300.", metavar="SECONDS"),
    ] = None

    url: Annotated[str | None, Flag(SERVER, "The server, as http://127.0.0.1:8000.", metavar="URL")] = None
    api: Annotated[Literal["completions", "chat"] | None, Flag(SERVER, "Which of its two; completions.")] = (
        None
    )
    header: Annotated[
        tuple[str, ...], Flag(SERVER, "Repeatable: a field of every request's head.", metavar="'K: V'")
    ] = ()
    api_key_file: Annotated[
        str | None,
        Flag(SERVER, "The key; else LAMINABENCH_API_KEY or OPENAI_API_KEY.", kind="file"),
    ] = None
    tokenizer: Annotated[
        str | None, Flag(SERVER, "Send text; the model's tokenizer.json or folder.", metavar="PATH")
    ] = None
    vocab: Annotated[Count | None, Flag(SERVER, "Token ids are below this; 10000 if it is not known.")] = None
    timeout: Annotated[Seconds | None, Flag(SERVER, "Seconds for a request in all; 600.")] = None
    first_byte_timeout: Annotated[Seconds | None, Flag(SERVER, "Seconds until an answer begins; 120.")] = None
    retries: Annotated[
        Annotated[int, Meta(ge=0, le=100)] | None,
        Flag(SERVER, "More attempts, where there is sense in it; 3."),
    ] = None
    warm_up: Annotated[
        Annotated[int, Meta(ge=0, le=10_000)] | None, Flag(SERVER, "Requests before the clock starts; 2.")
    ] = None
    connections: Annotated[Count | None, Flag(SERVER, "--mode saturate: in flight at once; 256.")] = None
    client_workers: Annotated[UpTo64 | None, Flag(SERVER, "Client processes; 1.")] = None

    offline: Annotated[bool | None, Flag(CUTS, "Never download; use what is here, else the profile.")] = None
    window: Annotated[
        str | None, Flag(CUTS, "Only requests arriving in these seconds.", metavar="A:B", kind="seconds")
    ] = None
    scale_lengths: Annotated[Positive, Flag(CUTS, "Multiply prompt and output lengths.", metavar="X")] = 1.0
    max_prompt: Annotated[Count | None, Flag(CUTS, "Longest prompt let through, in tokens.")] = None
    max_output: Annotated[Count | None, Flag(CUTS, "Longest output let through, in tokens.")] = None
    too_long: Annotated[Literal["truncate", "drop"], Flag(CUTS, "What happens to longer requests.")] = (
        "truncate"
    )
    sample: Annotated[Count | None, Flag(CUTS, "This many requests at random, whole sessions together.")] = (
        None
    )
    num_requests: Annotated[Count | None, Flag(CUTS, "Only the first N requests.", also="num-prompts")] = None
    request_rate: Annotated[
        Positive | None, Flag(CUTS, "Replace the arrival times: this many a second.", metavar="X")
    ] = None
    burstiness: Annotated[
        Positive,
        Flag(
            CUTS, "With --request-rate: gamma shape of the gaps; 1 is Poisson, less is burstier.", metavar="X"
        ),
    ] = 1.0
    rate_scale: Annotated[Positive, Flag(CUTS, "Scale the load: 2 means twice the rate.", metavar="X")] = 1.0
    seed: Annotated[Annotated[int, Meta(ge=0)], Flag(CUTS, "For everything drawn at random.")] = 0

    directory: Annotated[
        str | None, Flag(OUTPUT, "Where the Run goes; runs/NAME-AND-TIME by default.", kind="folder")
    ] = None
    no_out: Annotated[bool | None, Flag(OUTPUT, "Print only, keep no Run.")] = None
    plot: Annotated[
        str | None, Flag(OUTPUT, "Draw TBT and tokens/s over time: .png, .svg or .pdf.", kind="file")
    ] = None
    timeline: Annotated[
        str | None, Flag(OUTPUT, "Perfetto trace of one window: .json or .json.gz.", kind="file")
    ] = None
    timeline_window: Annotated[
        str | None,
        Flag(
            OUTPUT, "Which seconds; two iterations from the middle by default.", metavar="A:B", kind="seconds"
        ),
    ] = None

    @property
    def live(self) -> bool:
        return self.backend == "live"

    def table(self) -> dict[str, object]:
        """What was chosen, by the flags' names; of a header its value is left out, it may be a key."""
        chosen = {flag.key: getattr(self, name) for name, flag in CHOICES.items() if self.chose(name)}
        if "header" in chosen:
            chosen["header"] = tuple(map(without_value, chosen["header"]))
        if "url" in chosen:
            chosen["url"] = re.sub(r"//[^/]*@", f"//{HIDDEN}@", chosen["url"])
        return chosen

    def text(self) -> str:
        """As TOML, the same for the same choices. Secrets are not in it."""
        return "".join(f"{key} = {_toml(value)}\n" for key, value in self.table().items())

    def kept(self) -> Self:
        """What a Run keeps of it: not where results go; files by their full path."""
        paths = {name: absolute(name, value) for name in FILES if (value := getattr(self, name)) is not None}
        return msgspec.structs.replace(self, **_UNKEPT, **paths)

    def arguments(self) -> list[str]:
        """As a person types it after `laminabench replay`."""
        return [word for key, value in self.table().items() for word in typed(key, value)]

    def chose(self, name: str) -> bool:
        """Whether this choice was made, or is what it is by default. A switch that is off is not chosen."""
        value, choice = getattr(self, name), CHOICES[name]
        made: bool = value != choice.default
        return made and (value is not False or choice.flag.opposite)

    def require_valid(self) -> None:
        """A UserError where choices contradict each other, or a value cannot be."""
        of_table(self.table(), "the request")
        if self.trace is None:
            raise UserError("replay-no-trace", "Missing option '--trace'.")
        self.require_gaps()
        if self.no_out and self.directory:
            raise UserError("replay-output", "--out and --no-out contradict each other")

    def require_gaps(self) -> None:
        """A UserError for a shape of gaps that there are not."""
        if self.burstiness != 1.0 and self.request_rate is None:
            raise UserError(
                "trace-burstiness", "--burstiness shapes the gaps of --request-rate; give that too"
            )

    def __repr__(self) -> str:
        return f"ReplayRequest({', '.join(f'{key}={value!r}' for key, value in self.table().items())})"


@dataclass(frozen=True, slots=True)
class Choice:
    """A field: its key in files, its type, what it is by default, and its flag."""

    name: str
    key: str
    type: Any
    default: Any
    flag: Flag

    @property
    def spelled(self) -> str:
        return f"--{self.key}"

    @property
    def switch(self) -> bool:
        return bool in getattr(self.type, "__args__", ())

    @property
    def repeatable(self) -> bool:
        return isinstance(self.default, tuple)


def _choice(field: msgspec.structs.FieldInfo) -> Choice:
    # Limits of a type and the flag stand in one row, as nested annotations do.
    *limits, flag = field.type.__metadata__
    kind = Annotated[field.type.__origin__, *limits] if limits else field.type.__origin__
    return Choice(field.name, field.encode_name, kind, field.default, flag)


CHOICES: Mapping[str, Choice] = {
    field.name: _choice(field) for field in msgspec.structs.fields(ReplayRequest)
}
BY_KEY: Mapping[str, Choice] = {choice.key: choice for choice in CHOICES.values()}
# What says where results go, and not what is replayed.
OUTPUTS = tuple(name for name, choice in CHOICES.items() if choice.flag.group == OUTPUT)
# What a command that replays many times decides itself, and why.
_ONE_RUN = "it is about one replay's Run"
NOT_OF_MANY = {
    "out": _ONE_RUN,
    "no-out": _ONE_RUN,
    "plot": "it draws one replay",
    "timeline": "it draws one replay",
    "timeline-window": "it draws one replay",
}
_UNKEPT = dict.fromkeys(OUTPUTS)
# What may name a file.
FILES = ("trace", "model", "costs", "board", "api_key_file", "tokenizer")


def of_table(table: Mapping[str, Any], where: str) -> ReplayRequest:
    """The request of keys and values; a UserError names the key, and `where` it stands."""
    for key in table:
        if key not in BY_KEY:
            raise UserError(
                "replay-key-unknown", f"{where} has '{key}', which is not known; {nearest(key, BY_KEY)}"
            )
    try:
        return msgspec.convert(dict(table), ReplayRequest)
    except msgspec.ValidationError as error:
        why, _, place = str(error).partition(" - at `$.")
        key = re.split(r"[`\[]", place)[0]
        raise UserError(
            "replay-value", f"{where}: {key} = {table.get(key)!r}: {why.replace('`', '')}"
        ) from error


def of_text(text: str, where: str) -> ReplayRequest:
    """The request that `text()` wrote, or a person."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError("replay-not-toml", f"{where} is not valid TOML: {error}") from error
    return of_table(table, where)


def of_file(path: Path) -> ReplayRequest:
    """The request in a --config file."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError("replay-config-unreadable", f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError("replay-not-toml", f"{path} is not text") from error
    return of_text(text, str(path))


def of_manifest(text: str | None, where: str, given: Mapping[str, Any]) -> ReplayRequest:
    """The request that a Run keeps; what is given anew need not be in it."""
    if text is None:
        raise UserError(
            "run-too-old", f"{where} was written before Runs kept their request; type its command again"
        )
    request = of_text(text, where)
    hidden = [header for header in request.header if header.endswith(HIDDEN)]
    if hidden and "header" not in given:
        raise UserError(
            "replay-secret-missing",
            f"{where} does not keep the values of headers; give --header '{hidden[0]}' again",
        )
    return request


def seconds(text: str, flag: str) -> tuple[float, float]:
    """A stretch of seconds, "A:B"; either end may be left out."""
    first, colon, last = text.partition(":")
    try:
        stretch = (float(first or 0), float(last or math.inf))
    except ValueError:
        stretch = (math.nan, math.nan)
    if not colon or not 0 <= stretch[0] < stretch[1]:
        raise UserError(
            "window-invalid",
            f"{flag}: '{text}' is not a window; write seconds as A:B with A < B, such as 0:600",
        )
    return stretch


def without_value(header: str) -> str:
    """The name of a field of a head: its value may be a key."""
    return f"{header.partition(':')[0].strip()}: {HIDDEN}"


def absolute(name: str, value: str) -> str:
    """A file's full path, so that it is found from elsewhere too; anything else as it is."""
    # A catalogue's name is that, whatever lies here; of traces a file goes first.
    is_path = os.sep in value or value.endswith((".json", ".toml")) or name in ("trace", "api_key_file")
    return str(Path(value).absolute()) if is_path and Path(value).exists() else value


def typed(key: str, value: Any) -> Iterator[str]:
    """A choice as words of a command line."""
    if isinstance(value, bool):
        # Of a switch that has no opposite, off is to leave it out.
        yield from [f"--{key}"] if value else [f"--no-{key}"] * BY_KEY[key].flag.opposite
    else:
        for one in value if isinstance(value, list | tuple) else (value,):
            yield from (f"--{key}", str(one))


def _toml(value: Any) -> str:
    if isinstance(value, str):
        # JSON escapes what TOML does, but for one character.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return str(value).lower() if isinstance(value, bool) else repr(value)
