"""A replay as it is asked for: every choice in one typed value, with a text form that a Run keeps.

The command line, a --config file, a sweep's point, a case of `check` and a Run's manifest are all this. A
choice that is None was not made: the system settles it. A flag of `laminabench replay` is a field here and a
row of FLAGS; the command line, its help and the keys of files are made of these.
"""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import tomllib
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import msgspec
import msgspec.structs
from msgspec import Meta

from laminabench.util import safe_parse
from laminabench.util.errors import UserError, require_text
from laminabench.util.redact import Secret, without_credentials
from laminabench.util.suggest import nearest

WORKLOAD = "Workload"
SYSTEM = "System and hardware"
LIVE = "Live replays"
SERVER = "A server (--system openai)"
CUTS = "Cuts of the trace"
OUTPUT = "Output"

# What the text of a choice can reach besides the replay's own numbers. "files": it is looked up among known
# names or read as data; "code", "network", "credential" and "writes" act outside of the replay.
Reach = Literal["nothing", "files", "code", "network", "credential", "writes"]
ACTING: tuple[Reach, ...] = ("code", "network", "credential", "writes")


@dataclass(frozen=True, slots=True)
class Flag:
    """How a field is given on the command line; its name there is the field's, with dashes."""

    help: str
    metavar: str | None = None
    also: str = ""  # another spelling
    opposite: bool = False  # of a switch: --no-NAME is one too
    kind: Literal["", "file", "folder", "seconds"] = ""  # of a text: "seconds" is a stretch, as A:B
    words: tuple[str, ...] = ()  # beside a number; what ends in a colon goes on
    reach: Reach | None = None  # None only where the type has no free text, so that it reaches nothing


Count = Annotated[int, Meta(ge=1)]
UpTo64 = Annotated[int, Meta(ge=1, le=64)]
Positive = Annotated[float, Meta(gt=0, le=1e300)]
Seconds = Annotated[float, Meta(gt=0, le=1e6)]


def _key(name: str) -> str:
    return "out" if name == "directory" else name.replace("_", "-")


class ReplayRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename=_key):
    """Every choice of a replay. Which of them a system takes, its package says."""

    trace: str | None = None
    mode: Literal["saturate", "open", "closed"] = "saturate"
    concurrency: Count | None = None
    slo_tbt_ms: Annotated[float, Meta(gt=0, le=1e9)] = 100.0
    slo_ttft_ms: Annotated[float, Meta(gt=0, le=1e9)] | None = None
    policy: str | None = None

    system: str = "lamina"
    deployment: str | None = None
    model: str | None = None
    backend: Literal["modelled", "live"] | None = None
    costs: str | None = None
    network: str | None = None
    batches: UpTo64 | Literal["auto"] | None = None
    min_batch: Count | None = None
    pipelining: Literal["serial", "rotational", "fixed", "pingpong"] | None = None
    pipeline_parallel: UpTo64 | None = None
    experts: Literal["tp", "ep"] | None = None
    partition: Literal["heads", "requests"] | None = None
    overlap: bool | None = None
    stream_chunks: UpTo64 | None = None
    stream_along: Literal["requests", "heads"] | None = None
    absorb: Literal["model", "attention"] | None = None
    routing: Literal["skewed", "uniform"] | None = None
    kv_overcommit: Annotated[float, Meta(ge=1, le=100)] | None = None
    host: str | None = None
    host_async: bool | None = None
    admission: Literal["reserve", "grow"] | None = None
    prefix_sharing: bool | None = None
    kv_tokens: Count | None = None
    max_num_seqs: Annotated[int, Meta(ge=1, le=1 << 20)] | None = None
    block_size: Annotated[int, Meta(ge=1, le=4096)] | None = None
    gpu_memory_utilization: Annotated[float, Meta(ge=0.1, le=1)] | None = None
    prefill: UpTo64 | Annotated[str, Meta(pattern="^(off|colocated|model|pool:.+)$")] | None = None
    max_batched_tokens: Annotated[int, Meta(ge=1, le=1 << 17)] | None = None
    instances: Annotated[int, Meta(ge=1, le=1 << 14)] | None = None
    router: str | None = None
    queue: Literal["each", "global"] | None = None
    iterations: bool | None = None
    mapping: str | None = None
    board: str | None = None
    price: tuple[str, ...] = ()
    power: tuple[str, ...] = ()
    price_basis: Literal["rent", "purchase"] | None = None

    emulate: str | None = None
    slowdown: Annotated[float, Meta(ge=1, le=1000)] | None = None
    oversubscribe: bool | None = None
    dtype: Literal["bf16", "fp16", "fp32"] | None = None
    kv_dtype: Literal["auto", "fp8", "int8"] | None = None
    chaos: tuple[str, ...] = ()
    ray: str | None = None
    tensor_parallel: UpTo64 | None = None
    max_model_len: Count | None = None
    enforce_eager: bool | None = None
    runner_timeout: Seconds | None = None
    metrics_port: Annotated[int, Meta(ge=0, le=65535)] | None = None

    url: str | None = None
    api: Literal["completions", "chat"] | None = None
    header: tuple[Secret, ...] = ()
    api_key_file: str | None = None
    tokenizer: str | None = None
    vocab: Count | None = None
    timeout: Seconds | None = None
    first_byte_timeout: Seconds | None = None
    retries: Annotated[int, Meta(ge=0, le=100)] | None = None
    warm_up: Annotated[int, Meta(ge=0, le=10_000)] | None = None
    connections: Count | None = None
    client_workers: UpTo64 | None = None

    offline: bool | None = None
    max_rows: Annotated[int, Meta(ge=1, le=10**9)] | None = None
    window: str | None = None
    scale_lengths: Positive = 1.0
    max_prompt: Count | None = None
    max_output: Count | None = None
    too_long: Literal["truncate", "drop"] = "truncate"
    sample: Count | None = None
    num_requests: Count | None = None
    request_rate: Positive | None = None
    burstiness: Positive = 1.0
    rate_scale: Positive = 1.0
    seed: Annotated[int, Meta(ge=0)] = 0

    directory: str | None = None
    no_out: bool | None = None
    plot: str | None = None
    timeline: str | None = None
    timeline_window: str | None = None

    def __post_init__(self) -> None:
        # From a command line they are words.
        secrets = tuple(each if isinstance(each, Secret) else Secret(each) for each in self.header)
        msgspec.structs.force_setattr(self, "header", secrets)

    @property
    def live(self) -> bool:
        return self.backend == "live"

    def table(self) -> dict[str, object]:
        """What was chosen, by the flags' names; of a header its value is left out, it may be a key."""
        chosen = {flag.key: getattr(self, name) for name, flag in CHOICES.items() if self.chose(name)}
        if "header" in chosen:
            chosen["header"] = tuple(map(str, chosen["header"]))
        if "url" in chosen:
            chosen["url"] = without_credentials(chosen["url"])
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
        for word in self.arguments():
            require_text(word)
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


# The flag of each choice, under the headings of `laminabench replay --help`, in their order.
FLAGS: Mapping[str, Mapping[str, Flag]] = {
    WORKLOAD: {
        "trace": Flag("Catalogue name, imported name or file.", reach="files"),
        "mode": Flag("Queue never empty, the trace's own arrivals, or fixed concurrency."),
        "concurrency": Flag("With --mode closed: requests in the system at once."),
        "slo_tbt_ms": Flag("Time between tokens that counts as good."),
        "slo_ttft_ms": Flag("With --prefill: time to the first token that counts as good."),
        "policy": Flag("Who goes first: fifo (default), sjf, deadline, module:Class.", reach="code"),
    },
    SYSTEM: {
        "system": Flag("What to replay against.", reach="nothing"),
        "deployment": Flag(
            "4xh100, or model+attention workers: 2xh100+4xh20; with a layout: 8xh200:dp8ep8. "
            "v2 Table 5's, or 1xcpu+1xcpu. Live lamina: or auto, what is fastest here.",
            reach="nothing",
        ),
        "model": Flag("Name, config.json or folder; llama3-70b, or live llama-mini.", reach="files"),
        "backend": Flag("Hardware one need not have (modelled, default), or the engine on this machine."),
        "costs": Flag(
            "Cost set, or a TOML file; vllm-0.14, or vllm-0.24 for models and devices of today.",
            reach="files",
        ),
        "network": Flag(
            "fhbn, nccl, shm, ..., or 40us,42GB/s; the paper's. Live: auto, shm, gloo, verbs, mlx5.",
            reach="nothing",
        ),
        "batches": Flag("lamina, afd: how many take turns, 1 is serial; 2. Live: or auto."),
        "min_batch": Flag(
            "lamina: sequences that each batch should have; with fewer in all, fewer take turns; 1, live 8."
        ),
        "pipelining": Flag("How they take turns: lamina rotational or fixed, afd pingpong; or serial."),
        "pipeline_parallel": Flag("lamina: stages the model workers' layers are split in; 1."),
        "experts": Flag(
            "Live lamina: a replica's workers split experts (tp, default) or deal them out (ep)."
        ),
        "partition": Flag("lamina: what attention workers share out."),
        "overlap": Flag("lamina: send q before k and v exist; live not unless asked for.", opposite=True),
        "stream_chunks": Flag("Mini-batches of a transfer: v1 4, lamina 1."),
        "stream_along": Flag("What a mini-batch is a part of."),
        "absorb": Flag("lamina with MLA: who multiplies queries and outputs to and from the latent; model."),
        "routing": Flag("Mixtures of experts: loads as a power law (skewed, default), or all alike."),
        "kv_overcommit": Flag(
            "lamina: room for so many times the KV that devices hold, paged to the host; 1."
        ),
        "host": Flag(
            "What the host adds to an iteration and, after a comma, for each request: 5ms or 2ms,20us; the "
            "cost set's.",
            reach="nothing",
        ),
        "host_async": Flag("The host prepares an iteration while the one before it runs."),
        "admission": Flag(
            "KV for the final length at once (reserve, default), or as it grows, with preemption."
        ),
        "prefix_sharing": Flag(
            "Store prompt prefixes that the trace marks as equal once; --prefill: unless asked not to.",
            opposite=True,
        ),
        "kv_tokens": Flag("KV memory, of all workers together; else what fits."),
        "max_num_seqs": Flag("Most running at once; live 256."),
        "block_size": Flag("KV tokens in a block: vllm 16, lamina 1."),
        "gpu_memory_utilization": Flag("Share of a device's memory in use; 0.9.", metavar="X"),
        "prefill": Flag(
            "Prompts: there already (off, default), computed beside decoding (colocated), or by devices of "
            "their own (pool:2xh100). Live: made up (off), computed by the model workers (model), or by N "
            "others.",
            words=("off", "colocated", "model", "pool:"),
            reach="nothing",
        ),
        "max_batched_tokens": Flag(
            "--prefill: tokens that a batch computes in an iteration; 2048. Live lamina: of prompts; 512."
        ),
        "instances": Flag("So many of the deployment behind a router, each a whole one; 1."),
        "router": Flag(
            "With --instances: which one a request goes to; round-robin (default), least-requests, "
            "least-kv, prefix, fit, module:Class.",
            reach="code",
        ),
        "queue": Flag(
            "With --instances: requests wait at theirs (each, default), or in front until one has room "
            "(global)."
        ),
        "iterations": Flag(
            "Keep a row of every iteration (default); without them a replay of billions fits: TBT to 0.1 %, "
            "of the whole run, no pictures over time.",
            opposite=True,
        ),
        "mapping": Flag("h2m2: who says what is on which side; greedy.", reach="nothing"),
        "board": Flag("h2m2: another board than the device's.", metavar="NAME|FILE", reach="files"),
        "price": Flag(
            "Price per hour instead of the catalogue's, repeatable.", metavar="DEVICE=USD", reach="nothing"
        ),
        "power": Flag(
            "Rated power instead of the catalogue's, repeatable.", metavar="DEVICE=WATTS", reach="nothing"
        ),
        "price_basis": Flag(
            "Rents, or purchases over four years with power; rent where there is one by default."
        ),
    },
    LIVE: {
        "emulate": Flag(
            "Devices that are not here, as h100,h20: workers wait as long as the cost set says they take.",
            metavar="MODEL,ATTENTION",
            reach="nothing",
        ),
        "slowdown": Flag("With --emulate: stretch all times for a slow host; 1.", metavar="X"),
        "oversubscribe": Flag("More workers than cores may share them."),
        "dtype": Flag("Of weights and KV; else the model's."),
        "kv_dtype": Flag("Of KV alone, on CPUs: rounded to a byte a number, fp8 or int8; auto."),
        "chaos": Flag(
            "Repeatable: kill a worker, as attention:1@t=3s, random@tokens=500, random*50.",
            metavar="WHO[=HOW]@WHEN",
            reach="nothing",
        ),
        "ray": Flag(
            "Workers as actors of this Ray cluster, auto or host:port.", metavar="ADDRESS", reach="network"
        ),
        "tensor_parallel": Flag(
            "vllm: workers that share the model; a CPU's cores are one's threads, GPUs a worker each."
        ),
        "max_model_len": Flag("vllm: longest request; else the trace's longest."),
        "enforce_eager": Flag("vllm: compile nothing; starts sooner, runs slower."),
        "runner_timeout": Flag(
            "vllm: it hangs if nothing is heard from it for so long; 300.", metavar="SECONDS"
        ),
        "metrics_port": Flag(
            "Tell Prometheus meanwhile, on this port of 127.0.0.1; 0: any.", metavar="PORT", reach="network"
        ),
    },
    SERVER: {
        "url": Flag("The server, as http://127.0.0.1:8000.", metavar="URL", reach="network"),
        "api": Flag("Which of its two; completions."),
        "header": Flag("Repeatable: a field of every request's head.", metavar="'K: V'", reach="credential"),
        "api_key_file": Flag(
            "The key; else LAMINABENCH_API_KEY or OPENAI_API_KEY.", kind="file", reach="credential"
        ),
        "tokenizer": Flag("Send text; the model's tokenizer.json or folder.", metavar="PATH", reach="files"),
        "vocab": Flag("Token ids are below this; 10000 if it is not known."),
        "timeout": Flag("Seconds for a request in all; 600."),
        "first_byte_timeout": Flag("Seconds until an answer begins; 120."),
        "retries": Flag("More attempts, where there is sense in it; 3."),
        "warm_up": Flag("Requests before the clock starts; 2."),
        "connections": Flag("--mode saturate: in flight at once; 256."),
        "client_workers": Flag("Client processes; 1."),
    },
    CUTS: {
        "offline": Flag("Never download; use what is here, else the profile."),
        "max_rows": Flag("Read a file of up to so many rows, however well it is packed.", metavar="N"),
        "window": Flag(
            "Only requests arriving in these seconds.", metavar="A:B", kind="seconds", reach="nothing"
        ),
        "scale_lengths": Flag("Multiply prompt and output lengths.", metavar="X"),
        "max_prompt": Flag("Longest prompt let through, in tokens."),
        "max_output": Flag("Longest output let through, in tokens."),
        "too_long": Flag("What happens to longer requests."),
        "sample": Flag("This many requests at random, whole sessions together."),
        "num_requests": Flag("Only the first N requests.", also="num-prompts"),
        "request_rate": Flag("Replace the arrival times: this many a second.", metavar="X"),
        "burstiness": Flag(
            "With --request-rate: gamma shape of the gaps; 1 is Poisson, less is burstier.", metavar="X"
        ),
        "rate_scale": Flag("Scale the load: 2 means twice the rate.", metavar="X"),
        "seed": Flag("For everything drawn at random."),
    },
    OUTPUT: {
        "directory": Flag(
            "Where the Run goes; runs/NAME-AND-TIME by default.", kind="folder", reach="writes"
        ),
        "no_out": Flag("Print only, keep no Run."),
        "plot": Flag("Draw TBT and tokens/s over time: .png, .svg or .pdf.", kind="file", reach="writes"),
        "timeline": Flag("Perfetto trace of one window: .json or .json.gz.", kind="file", reach="writes"),
        "timeline_window": Flag(
            "Which seconds; two iterations from the middle by default.",
            metavar="A:B",
            kind="seconds",
            reach="nothing",
        ),
    },
}


@dataclass(frozen=True, slots=True)
class Choice:
    """A field: its key in files, its type, what it is by default, and its flag."""

    name: str
    key: str
    type: Any
    default: Any
    flag: Flag
    group: str

    @property
    def spelled(self) -> str:
        return f"--{self.key}"

    @property
    def switch(self) -> bool:
        return bool in getattr(self.type, "__args__", ())

    @property
    def repeatable(self) -> bool:
        return isinstance(self.default, tuple)

    def acts(self, value: object) -> bool:
        """Whether this value runs code, opens a connection, reveals a credential or writes a file."""
        # Policies and routers of laminabench have no colon in their names.
        return self.flag.reach in ACTING and (self.flag.reach != "code" or ":" in str(value))


_FIELDS = {field.name: field for field in msgspec.structs.fields(ReplayRequest)}
CHOICES: Mapping[str, Choice] = {
    name: Choice(name, _FIELDS[name].encode_name, _FIELDS[name].type, _FIELDS[name].default, flag, group)
    for group, flags in FLAGS.items()
    for name, flag in flags.items()
}
BY_KEY: Mapping[str, Choice] = {choice.key: choice for choice in CHOICES.values()}
# What a command that replays many times decides itself, and why.
_ONE_RUN = "it is about one replay's Run"
NOT_OF_MANY = {
    "out": _ONE_RUN,
    "no-out": _ONE_RUN,
    "plot": "it draws one replay",
    "timeline": "it draws one replay",
    "timeline-window": "it draws one replay",
    "metrics-port": "it tells of one replay",
}
_UNKEPT = dict.fromkeys((*FLAGS[OUTPUT], "metrics_port"))  # where results go, and not what is replayed
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
        return msgspec.convert(dict(table), ReplayRequest, dec_hook=_secret)
    except msgspec.ValidationError as error:
        why, _, place = str(error).partition(" - at `$.")
        key = re.split(r"[`\[]", place)[0]
        raise UserError(
            "replay-value", f"{where}: {key} = {table.get(key)!r}: {why.replace('`', '')}"
        ) from error


def of_text(text: str, where: str) -> ReplayRequest:
    """The request that `text()` wrote, or a person."""
    try:
        table = safe_parse.toml(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError("replay-not-toml", f"{where} is not valid TOML: {error}") from error
    return of_table(table, where)


def of_file(path: Path) -> ReplayRequest:
    """The request in a --config file."""
    try:
        text = safe_parse.text(path)
    except OSError as error:
        raise UserError("replay-config-unreadable", f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError("replay-not-toml", f"{path} is not text") from error
    return of_text(text, str(path))


def require_given(request: ReplayRequest, where: str, given: Container[str]) -> None:
    """Raise a UserError if a stored request acts outside of the replay by a choice not in `given`."""
    if words := acting(request, given):
        raise UserError(
            "request-not-trusted",
            f"{where} names code, addresses, credentials or files to write, which are taken from the command "
            f"line only; to use them, add: {shlex.join(words)}",
        )


def acting(request: ReplayRequest, given: Container[str] = ()) -> list[str]:
    """Return the choices of a request that act outside of the replay as arguments, without those given."""
    table = request.table()
    return [
        word
        for name, choice in CHOICES.items()
        if name not in given and choice.key in table and choice.acts(getattr(request, name))
        for word in typed(choice.key, table[choice.key])
    ]


def of_manifest(text: str | None, where: str, given: Mapping[str, Any]) -> ReplayRequest:
    """Return the request that a Run keeps; what it reaches outside of the replay must be given anew."""
    if text is None:
        raise UserError(
            "run-too-old",
            f"{where} keeps no request, as it was imported or is of an older version: type its command again",
        )
    request = of_text(text, where)
    require_given(request, where, given)
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


def _secret(kind: type, value: object) -> Secret:
    if kind is not Secret or not isinstance(value, str):
        raise TypeError(f"Expected `str`, got `{type(value).__name__}`")
    return Secret(value)


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
