"""A replay as it is requested: every option in one typed value, with a text form that a Run stores.

The command line, a --config file, a point of a sweep, a case of `check` and a Run's manifest are all this. A
field that is None was not set: the system decides. An option of `laminabench replay` is a field here; the
command line, its help, the Python API and the keys of files are made of these declarations.
"""

from __future__ import annotations

import math
import os
import shlex
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import msgspec
import msgspec.structs
from msgspec import Meta

from laminabench.requests.fields import (
    Count,
    Field,
    Milliseconds,
    Option,
    Positive,
    Request,
    Seconds,
    UpTo64,
    convert,
    flag_key,
    require_known,
    toml,
)
from laminabench.util import safe_parse
from laminabench.util.errors import UserError, require_text
from laminabench.util.redact import Secret, without_credentials

WORKLOAD = "Workload"
SYSTEM = "System and hardware"
LIVE = "Live replays"
SERVER = "A server (--system openai)"
CUTS = "Cuts of the trace"
OUTPUT = "Output"

# Kinds of systems, for `takes`. A system has the options of its name and of the kinds that it belongs to.
MODELLED = "modelled"  # every modelled system
PROMPTS = "prompts"  # modelled systems whose times are tables by batch size
LIVE_LAMINA, LIVE_VLLM, OPENAI, EMULATED = "live lamina", "live vllm", "openai", "emulated lamina"
_LAMINA = ("lamina", LIVE_LAMINA, EMULATED)
_SPLIT = ("lamina", "afd", LIVE_LAMINA, EMULATED)
_PAGED = ("lamina", "vllm", "afd", LIVE_VLLM)
_PROMPTS = (PROMPTS, LIVE_LAMINA, LIVE_VLLM)
_SEVERAL = (MODELLED, LIVE_LAMINA)
_TIMELINE = (MODELLED, LIVE_LAMINA, EMULATED)


class ReplayRequest(Request, frozen=True, kw_only=True, forbid_unknown_fields=True, rename=flag_key):
    """Every option of a replay."""

    trace: Annotated[
        str | None, Option("Catalogue name, imported name or file.", WORKLOAD, common=True, reach="files")
    ] = None
    mode: Annotated[
        Literal["saturate", "open", "closed"],
        Option("Queue never empty, the trace's arrivals, or fixed concurrency.", WORKLOAD, common=True),
    ] = "saturate"
    concurrency: Annotated[
        Count | None, Option("Requests in the system at once, with --mode closed.", WORKLOAD, unit="requests")
    ] = None
    slo_tbt_ms: Annotated[
        Milliseconds, Option("Limit of the time between tokens.", WORKLOAD, common=True, unit="ms")
    ] = 100.0
    slo_ttft_ms: Annotated[
        Milliseconds | None,
        Option("Limit of the time to the first token, with --prefill.", WORKLOAD, _PROMPTS, unit="ms"),
    ] = None
    policy: Annotated[
        str | None,
        Option(
            "Order of the queue: fifo (default), sjf, deadline, or module:Class.",
            WORKLOAD,
            _TIMELINE,
            reach="code",
        ),
    ] = None

    system: Annotated[str, Option("The system to replay against.", SYSTEM, common=True, reach="nothing")] = (
        "lamina"
    )
    deployment: Annotated[
        str | None,
        Option(
            "4xh100, model+attention workers as 2xh100+4xh20, with a layout 8xh200:dp8ep8; live lamina also "
            "auto, the fastest on this machine. The paper's, or 1xcpu+1xcpu, by default.",
            SYSTEM,
            common=True,
            reach="nothing",
        ),
    ] = None
    model: Annotated[
        str | None, Option("Name, config.json or folder.", SYSTEM, common=True, reach="files")
    ] = None
    backend: Annotated[
        Literal["modelled", "live"] | None,
        Option("Modelled hardware (default), or this machine.", SYSTEM, common=True),
    ] = None
    costs: Annotated[
        str | None,
        Option(
            "Cost set or TOML file; vllm-0.14, for recent models and devices vllm-0.24, by default.",
            SYSTEM,
            (MODELLED, EMULATED),
            common=True,
            reach="files",
        ),
    ] = None
    network: Annotated[
        str | None,
        Option(
            "fhbn, nccl, shm, ..., or 40us,42GB/s; live auto, shm, gloo, verbs or mlx5.",
            SYSTEM,
            _TIMELINE,
            reach="nothing",
        ),
    ] = None
    batches: Annotated[
        UpTo64 | Literal["auto"] | None,
        Option("Batches that alternate, 1 is serial; 2 by default. auto measures: live.", SYSTEM, _SPLIT),
    ] = None
    min_batch: Annotated[
        Count | None,
        Option(
            "Sequences that each batch should have; with fewer in all, fewer batches alternate.",
            SYSTEM,
            _LAMINA,
            unit="requests",
        ),
    ] = None
    pipelining: Annotated[
        Literal["serial", "rotational", "fixed", "pingpong"] | None,
        Option("How batches alternate: lamina rotational or fixed, afd pingpong; or serial.", SYSTEM, _SPLIT),
    ] = None
    pipeline_parallel: Annotated[
        UpTo64 | None, Option("Stages that the model workers' layers are split into.", SYSTEM, _LAMINA)
    ] = None
    experts: Annotated[
        Literal["tp", "ep"] | None,
        Option("Experts split over a replica's workers (tp), or distributed (ep).", SYSTEM, (LIVE_LAMINA,)),
    ] = None
    partition: Annotated[
        Literal["heads", "requests"] | None,
        Option("What is distributed over attention workers.", SYSTEM, _LAMINA),
    ] = None
    overlap: Annotated[
        bool | None, Option("Send q before k and v are computed.", SYSTEM, _LAMINA, opposite=True)
    ] = None
    stream_chunks: Annotated[
        UpTo64 | None, Option("Chunks that a transfer is split into.", SYSTEM, ("lamina", LIVE_LAMINA))
    ] = None
    stream_along: Annotated[
        Literal["requests", "heads"] | None,
        Option("What a transfer is split along.", SYSTEM, ("lamina", LIVE_LAMINA)),
    ] = None
    absorb: Annotated[
        Literal["model", "attention"] | None,
        Option("MLA: the workers that project queries and outputs to and from the latent.", SYSTEM, _LAMINA),
    ] = None
    routing: Annotated[
        Literal["skewed", "uniform"] | None,
        Option("Mixture of experts: the load of experts.", SYSTEM, ("lamina", "vllm", "afd", EMULATED)),
    ] = None
    kv_overcommit: Annotated[
        Annotated[float, Meta(ge=1, le=100)] | None,
        Option(
            "KV capacity as a multiple of device memory; the rest is paged to the host.",
            SYSTEM,
            ("lamina", LIVE_LAMINA),
            unit="x",
        ),
    ] = None
    host: Annotated[
        str | None,
        Option(
            "Host time of an iteration and, after a comma, of each request: 5ms or 2ms,20us; the cost set's "
            "by default.",
            SYSTEM,
            (MODELLED,),
            reach="nothing",
        ),
    ] = None
    host_async: Annotated[
        bool | None, Option("The host prepares an iteration during the previous one.", SYSTEM, (MODELLED,))
    ] = None
    admission: Annotated[
        Literal["reserve", "grow"] | None,
        Option("Reserve KV for the final length (default), or grow it and preempt.", SYSTEM, _SEVERAL),
    ] = None
    prefix_sharing: Annotated[
        bool | None,
        Option(
            "Store prompt prefixes that the trace marks as equal once; the default with --prefill.",
            SYSTEM,
            _PAGED,
            opposite=True,
        ),
    ] = None
    kv_tokens: Annotated[
        Count | None,
        Option(
            "KV capacity of all workers together; what fits by default.",
            SYSTEM,
            (*_TIMELINE, LIVE_VLLM),
            unit="tokens",
        ),
    ] = None
    max_num_seqs: Annotated[
        Annotated[int, Meta(ge=1, le=1 << 20)] | None,
        Option("Most requests that run at once.", SYSTEM, (*_TIMELINE, LIVE_VLLM), unit="requests"),
    ] = None
    block_size: Annotated[
        Annotated[int, Meta(ge=1, le=4096)] | None,
        Option("Tokens of a KV block.", SYSTEM, _PAGED, unit="tokens"),
    ] = None
    gpu_memory_utilization: Annotated[
        Annotated[float, Meta(ge=0.1, le=1)] | None,
        Option("Share of a device's memory in use.", SYSTEM, (*_PAGED, EMULATED), unit="share"),
    ] = None
    prefill: Annotated[
        UpTo64 | Annotated[str, Meta(pattern="^(off|colocated|model|pool:.+)$")] | None,
        Option(
            "Prompts are there already (off, default), computed with decoding (colocated) or on separate "
            "devices (pool:2xh100). Live: made up (off), computed by model workers (model) or by N others.",
            SYSTEM,
            _PROMPTS,
            common=True,
            words=("off", "colocated", "model", "pool:"),
            reach="nothing",
        ),
    ] = None
    max_batched_tokens: Annotated[
        Annotated[int, Meta(ge=1, le=1 << 17)] | None,
        Option(
            "Most tokens of an iteration, with --prefill; 2048, live lamina 512 of prompts, by default.",
            SYSTEM,
            _PROMPTS,
            unit="tokens",
        ),
    ] = None
    instances: Annotated[
        Annotated[int, Meta(ge=1, le=1 << 14)] | None,
        Option("Copies of the deployment behind a router.", SYSTEM, _SEVERAL),
    ] = None
    router: Annotated[
        str | None,
        Option(
            "Which instance gets a request: round-robin (default), least-requests, least-kv, prefix, fit, or "
            "module:Class.",
            SYSTEM,
            _SEVERAL,
            reach="code",
        ),
    ] = None
    queue: Annotated[
        Literal["each", "global"] | None,
        Option(
            "Requests wait at an instance (each, default), or before the router (global).", SYSTEM, _SEVERAL
        ),
    ] = None
    iterations: Annotated[
        bool | None,
        Option(
            "Store every iteration (default). Without them replays of billions of iterations fit, with TBT "
            "to 0.1 % and without pictures over time.",
            SYSTEM,
            (PROMPTS,),
            opposite=True,
        ),
    ] = None
    mapping: Annotated[
        str | None,
        Option("The policy that places data on a board's sides.", SYSTEM, ("h2m2",), reach="nothing"),
    ] = None
    board: Annotated[
        str | None,
        Option("Another board than the device's.", SYSTEM, ("h2m2",), metavar="NAME|FILE", reach="files"),
    ] = None
    price: Annotated[
        tuple[str, ...],
        Option(
            "Repeatable: price per hour instead of the catalogue's.",
            SYSTEM,
            metavar="DEVICE=USD",
            common=True,
            reach="nothing",
        ),
    ] = ()
    power: Annotated[
        tuple[str, ...],
        Option(
            "Repeatable: rated power instead of the catalogue's.",
            SYSTEM,
            metavar="DEVICE=WATTS",
            reach="nothing",
        ),
    ] = ()
    price_basis: Annotated[
        Literal["rent", "purchase"] | None,
        Option("Rents, or purchases over four years with power; rent where known by default.", SYSTEM),
    ] = None

    emulate: Annotated[
        str | None,
        Option(
            "Devices such as h100,h20: workers wait as long as the cost set says that these take.",
            LIVE,
            (LIVE_LAMINA, EMULATED),
            metavar="MODEL,ATTENTION",
            reach="nothing",
        ),
    ] = None
    slowdown: Annotated[
        Annotated[float, Meta(ge=1, le=1000)] | None,
        Option(
            "Factor on all times with --emulate, for a slow host; 1 by default.", LIVE, (EMULATED,), unit="x"
        ),
    ] = None
    oversubscribe: Annotated[bool | None, Option("Allow more workers than cores.", LIVE, (LIVE_LAMINA,))] = (
        None
    )
    dtype: Annotated[
        Literal["bf16", "fp16", "fp32"] | None,
        Option("Type of weights and KV; the model's by default.", LIVE, (LIVE_LAMINA, LIVE_VLLM)),
    ] = None
    kv_dtype: Annotated[
        Literal["auto", "fp8", "int8"] | None,
        Option("Type of KV alone on CPUs, a byte a number: fp8 or int8.", LIVE, (LIVE_LAMINA,)),
    ] = None
    chaos: Annotated[
        tuple[str, ...],
        Option(
            "Repeatable: kill a worker, as attention:1@t=3s, random@tokens=500, random*50.",
            LIVE,
            (LIVE_LAMINA, EMULATED),
            metavar="WORKER[=HOW]@WHEN",
            reach="nothing",
        ),
    ] = ()
    ray: Annotated[
        str | None,
        Option(
            "Run workers as actors of this Ray cluster, auto or host:port.",
            LIVE,
            (LIVE_LAMINA,),
            metavar="ADDRESS",
            reach="network",
        ),
    ] = None
    tensor_parallel: Annotated[
        UpTo64 | None,
        Option("Workers that share the model: GPUs, or threads on the cores of a CPU.", LIVE, (LIVE_VLLM,)),
    ] = None
    max_model_len: Annotated[
        Count | None,
        Option("Longest request; the trace's longest by default.", LIVE, (LIVE_VLLM,), unit="tokens"),
    ] = None
    enforce_eager: Annotated[
        bool | None, Option("Compile nothing: starts sooner, runs slower.", LIVE, (LIVE_VLLM,))
    ] = None
    runner_timeout: Annotated[
        Seconds | None,
        Option("How long vLLM may be silent; 300 by default.", LIVE, (LIVE_VLLM,), unit="seconds"),
    ] = None
    metrics_port: Annotated[
        Annotated[int, Meta(ge=0, le=65535)] | None,
        Option(
            "Serve Prometheus metrics meanwhile, on this port of 127.0.0.1; 0 is any.",
            LIVE,
            (LIVE_LAMINA, LIVE_VLLM, OPENAI, EMULATED),
            unit="port",
            reach="network",
        ),
    ] = None

    url: Annotated[
        str | None,
        Option("The server, as http://127.0.0.1:8000.", SERVER, (OPENAI,), metavar="URL", reach="network"),
    ] = None
    api: Annotated[Literal["completions", "chat"] | None, Option("The API to call.", SERVER, (OPENAI,))] = (
        None
    )
    header: Annotated[
        tuple[Secret, ...],
        Option(
            "Repeatable: a header of every request.",
            SERVER,
            (OPENAI,),
            metavar="'K: V'",
            reach="credential",
        ),
    ] = ()
    api_key_file: Annotated[
        str | None,
        Option(
            "File of the API key; by default LAMINABENCH_API_KEY or OPENAI_API_KEY.",
            SERVER,
            (OPENAI,),
            kind="file",
            reach="credential",
        ),
    ] = None
    tokenizer: Annotated[
        str | None,
        Option(
            "Send text, by this tokenizer.json or folder.", SERVER, (OPENAI,), metavar="PATH", reach="files"
        ),
    ] = None
    vocab: Annotated[
        Count | None, Option("Number of token ids; 10000 where unknown.", SERVER, (OPENAI,), unit="tokens")
    ] = None
    timeout: Annotated[
        Seconds | None, Option("Limit of a whole request.", SERVER, (OPENAI,), unit="seconds")
    ] = None
    first_byte_timeout: Annotated[
        Seconds | None, Option("Limit until a response begins.", SERVER, (OPENAI,), unit="seconds")
    ] = None
    retries: Annotated[
        Annotated[int, Meta(ge=0, le=100)] | None,
        Option("More attempts after an error that may pass.", SERVER, (OPENAI,)),
    ] = None
    warm_up: Annotated[
        Annotated[int, Meta(ge=0, le=10_000)] | None,
        Option("Requests before the clock starts.", SERVER, (OPENAI,), unit="requests"),
    ] = None
    connections: Annotated[
        Count | None,
        Option(
            "Requests in flight with --mode saturate; 256 by default.", SERVER, (OPENAI,), unit="requests"
        ),
    ] = None
    client_workers: Annotated[UpTo64 | None, Option("Client processes.", SERVER, (OPENAI,))] = None

    offline: Annotated[bool | None, Option("Never download; use local files, else the profile.", CUTS)] = None
    max_rows: Annotated[
        Annotated[int, Meta(ge=1, le=10**9)] | None,
        Option("Most rows of a trace's file, however well it is compressed.", CUTS, unit="n"),
    ] = None
    window: Annotated[
        str | None,
        Option(
            "Only requests that arrive in these seconds.", CUTS, metavar="A:B", kind="window", reach="nothing"
        ),
    ] = None
    scale_lengths: Annotated[Positive, Option("Multiply prompt and output lengths.", CUTS, unit="x")] = 1.0
    max_prompt: Annotated[Count | None, Option("Longest prompt.", CUTS, unit="tokens")] = None
    max_output: Annotated[Count | None, Option("Longest output.", CUTS, unit="tokens")] = None
    too_long: Annotated[Literal["truncate", "drop"], Option("What happens to longer requests.", CUTS)] = (
        "truncate"
    )
    sample: Annotated[
        Count | None, Option("A random sample of this many requests, in whole sessions.", CUTS, unit="n")
    ] = None
    num_requests: Annotated[
        Count | None,
        Option("Only the first N requests.", CUTS, common=True, unit="n", also="--num-prompts"),
    ] = None
    request_rate: Annotated[
        Positive | None, Option("Replace the arrival times: requests a second.", CUTS, unit="x")
    ] = None
    burstiness: Annotated[
        Positive,
        Option("Gamma shape of the gaps of --request-rate; 1 is Poisson, less is burstier.", CUTS, unit="x"),
    ] = 1.0
    rate_scale: Annotated[
        Positive, Option("Scale the load: 2 means twice the rate.", CUTS, common=True, unit="x")
    ] = 1.0
    seed: Annotated[Annotated[int, Meta(ge=0)], Option("Seed of all random numbers.", CUTS)] = 0

    directory: Annotated[
        str | None,
        Option(
            "Where the Run goes; runs/NAME-AND-TIME by default.",
            OUTPUT,
            common=True,
            kind="folder",
            also="-o",
            reach="writes",
        ),
    ] = None
    no_out: Annotated[bool | None, Option("Print only, store no Run.", OUTPUT)] = None
    plot: Annotated[
        str | None,
        Option(
            "Draw TBT and tokens/s over time: .png, .svg or .pdf.",
            OUTPUT,
            common=True,
            kind="file",
            reach="writes",
        ),
    ] = None
    timeline: Annotated[
        str | None,
        Option(
            "Perfetto trace of one window: .json or .json.gz.", OUTPUT, _TIMELINE, kind="file", reach="writes"
        ),
    ] = None
    timeline_window: Annotated[
        str | None,
        Option(
            "The window of --timeline, in seconds; two iterations from the middle by default.",
            OUTPUT,
            _TIMELINE,
            metavar="A:B",
            kind="window",
            reach="nothing",
        ),
    ] = None

    def __post_init__(self) -> None:
        # From a command line they are words.
        secrets = tuple(each if isinstance(each, Secret) else Secret(each) for each in self.header)
        msgspec.structs.force_setattr(self, "header", secrets)

    @property
    def live(self) -> bool:
        return self.backend == "live"

    def table(self) -> dict[str, object]:
        """Return what is set, by key. The values of headers are left out: they may be credentials."""
        table = {field.key: getattr(self, field.name) for field in self.set_fields()}
        if "header" in table:
            table["header"] = tuple(map(str, table["header"]))
        if "url" in table:
            table["url"] = without_credentials(table["url"])
        return table

    def text(self) -> str:
        """Return the request as TOML, without secrets; equal requests have equal texts."""
        return "".join(f"{key} = {toml(value)}\n" for key, value in self.table().items())

    def stored(self) -> Self:
        """Return what a Run stores of it: without where results go, and with full paths of files."""
        paths = {name: absolute(name, value) for name in FILES if (value := getattr(self, name)) is not None}
        return msgspec.structs.replace(self, **_NOT_STORED, **paths)

    def arguments(self) -> list[str]:
        """Return the request as the arguments of `laminabench replay`."""
        return [word for key, value in self.table().items() for word in BY_KEY[key].arguments(value)]

    def require_valid(self) -> None:
        """Raise a UserError for fields that contradict each other, or a value that is not allowed."""
        for word in self.arguments():
            require_text(word)
        of_table(self.table(), "the request")
        if self.trace is None:
            raise UserError("replay-no-trace", "Missing option '--trace'.")
        self.require_gaps()
        if self.no_out and self.directory:
            raise UserError("replay-output", "--out and --no-out contradict each other")

    def require_gaps(self) -> None:
        """Raise a UserError for a burstiness without a request rate."""
        if self.burstiness != 1.0 and self.request_rate is None:
            raise UserError(
                "trace-burstiness", "--burstiness shapes the gaps of --request-rate; give that too"
            )

    def __repr__(self) -> str:
        return f"ReplayRequest({', '.join(f'{key}={value!r}' for key, value in self.table().items())})"


FIELDS: Mapping[str, Field] = ReplayRequest.fields()
BY_KEY: Mapping[str, Field] = {field.key: field for field in FIELDS.values()}
GROUPS: Mapping[str, tuple[str, ...]] = {
    group: tuple(name for name, field in FIELDS.items() if field.option.group == group)
    for group in (WORKLOAD, SYSTEM, LIVE, SERVER, CUTS, OUTPUT)
}
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
_NOT_STORED = dict.fromkeys((*GROUPS[OUTPUT], "metrics_port"))
# Fields that may name a file.
FILES = ("trace", "model", "costs", "board", "api_key_file", "tokenizer")


def taken_by(*kinds: str) -> frozenset[str]:
    """Return the names of the fields that a system of these kinds takes, besides those that all take."""
    return frozenset(name for name, field in FIELDS.items() if set(kinds) & set(field.option.takes))


def of_table(table: Mapping[str, Any], where: str) -> ReplayRequest:
    """Return the request of keys and values; a UserError names the key, and `where` it is written."""
    require_known(table, BY_KEY, where)
    return convert(ReplayRequest, {BY_KEY[key].name: value for key, value in table.items()}, where)


def of_text(text: str, where: str) -> ReplayRequest:
    """Parse a request written by `ReplayRequest.text()` or by a person."""
    try:
        table = safe_parse.toml(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError("replay-not-toml", f"{where} is not valid TOML: {error}") from error
    return of_table(table, where)


def of_file(path: Path) -> ReplayRequest:
    """Read the request in a --config file."""
    try:
        text = safe_parse.text(path)
    except OSError as error:
        raise UserError("replay-config-unreadable", f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError("replay-not-toml", f"{path} is not text") from error
    return of_text(text, str(path))


def require_given(request: ReplayRequest, where: str, given: Collection[str]) -> None:
    """Raise a UserError if a stored request acts outside of the replay by a field not in `given`."""
    if words := acting(request, given):
        raise UserError(
            "request-not-trusted",
            f"{where} names code, addresses, credentials or files to write, which are taken from the command "
            f"line only; to use them, add: {shlex.join(words)}",
        )


def acting(request: ReplayRequest, given: Collection[str] = ()) -> list[str]:
    """Return the fields of a request that act outside of the replay as arguments, without those given."""
    table = request.table()
    return [
        word
        for name, field in FIELDS.items()
        if name not in given and field.key in table and field.acts(getattr(request, name))
        for word in field.arguments(table[field.key])
    ]


def of_manifest(text: str | None, where: str, given: Collection[str]) -> ReplayRequest:
    """Return the request that a Run stores; what it reaches outside of the replay must be given anew."""
    if text is None:
        raise UserError(
            "run-too-old",
            f"{where} keeps no request, as it was imported or is of an older version: type its command again",
        )
    request = of_text(text, where)
    require_given(request, where, given)
    return request


def seconds(text: str, flag: str) -> tuple[float, float]:
    """Parse a window of seconds, "A:B"; either end may be left out."""
    first, colon, last = text.partition(":")
    try:
        window = (float(first or 0), float(last or math.inf))
    except ValueError:
        window = (math.nan, math.nan)
    if not colon or not 0 <= window[0] < window[1]:
        raise UserError(
            "window-invalid",
            f"{flag}: '{text}' is not a window; write seconds as A:B with A < B, such as 0:600",
        )
    return window


def absolute(name: str, value: str) -> str:
    """Return a file's full path, so that it is found from other folders too; anything else as it is."""
    # A name of the catalogue stays one, whatever file has that name here; of traces a file goes first.
    is_path = os.sep in value or value.endswith((".json", ".toml")) or name in ("trace", "api_key_file")
    return str(Path(value).absolute()) if is_path and Path(value).exists() else value
