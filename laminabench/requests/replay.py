"""A replay as it is requested: every option in one typed value, with a text form that a Run stores.

The command line, a --config file, a point of a sweep, a case of `check` and a Run's manifest are all this. A
field that is None was not set: the system decides. An option of `laminabench replay` is a field here; the
command line, its help, the Python API and the keys of files are made of these declarations.
"""

from __future__ import annotations

import functools
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
    Seed,
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
workload_option, hardware_option, _live, _server, _cut, output_option = (
    functools.partial(Option, group=group) for group in (WORKLOAD, SYSTEM, LIVE, SERVER, CUTS, OUTPUT)
)

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
        str | None, workload_option("Catalogue name, imported name or file.", common=True, reach="files")
    ] = None
    mode: Annotated[
        Literal["saturate", "open", "closed"],
        workload_option("Queue never empty, the trace's arrivals, or fixed concurrency.", common=True),
    ] = "saturate"
    concurrency: Annotated[
        Count | None, workload_option("Requests in the system at once, with --mode closed.", unit="requests")
    ] = None
    slo_tbt_ms: Annotated[
        Milliseconds, workload_option("Limit of the time between tokens.", common=True, unit="ms")
    ] = 100.0
    slo_ttft_ms: Annotated[
        Milliseconds | None,
        workload_option("Limit of the time to the first token, with --prefill.", _PROMPTS, unit="ms"),
    ] = None
    policy: Annotated[
        str | None,
        workload_option(
            "Order of the queue: fifo (default), sjf, deadline, or module:Class.", _TIMELINE, reach="code"
        ),
    ] = None

    system: Annotated[str, hardware_option("The system to replay against.", common=True, reach="nothing")] = (
        "lamina"
    )
    deployment: Annotated[
        str | None,
        hardware_option(
            "4xh100, model+attention workers as 2xh100+4xh20, with a layout 8xh200:dp8ep8; live lamina also "
            "auto, the fastest on this machine. The paper's, or 1xcpu+1xcpu, by default.",
            common=True,
            reach="nothing",
        ),
    ] = None
    model: Annotated[
        str | None, hardware_option("Name, config.json or folder.", common=True, reach="files")
    ] = None
    backend: Annotated[
        Literal["modelled", "live"] | None,
        hardware_option("Modelled hardware (default), or this machine.", common=True),
    ] = None
    costs: Annotated[
        str | None,
        hardware_option(
            "Cost set or TOML file; by default vllm-0.24, or the set that measured the devices.",
            (MODELLED, EMULATED),
            common=True,
            reach="files",
        ),
    ] = None
    attention_kernel: Annotated[
        tuple[str, ...],
        hardware_option(
            "Repeatable: a device's kernel of decode attention: fa3-128, fa3-64, flashinfer, hpc-ops, for "
            "MLA flashmla. The cost set's, on h20 flashinfer and flashmla, by default.",
            (MODELLED, EMULATED),
            metavar="DEVICE=NAME",
            reach="nothing",
        ),
    ] = ()
    network: Annotated[
        str | None,
        hardware_option(
            "fhbn, nccl, shm, ..., or 40us,42GB/s; live auto, shm, gloo, verbs or mlx5.",
            _TIMELINE,
            reach="nothing",
        ),
    ] = None
    batches: Annotated[
        UpTo64 | Literal["auto"] | None,
        hardware_option("Batches that alternate, 1 is serial; 2 by default. auto measures: live.", _SPLIT),
    ] = None
    min_batch: Annotated[
        Count | None,
        hardware_option(
            "Least sequences per batch, 1 modelled, 8 live by default; with fewer in all, fewer alternate.",
            _LAMINA,
            unit="requests",
        ),
    ] = None
    pipelining: Annotated[
        Literal["serial", "rotational", "fixed", "pingpong"] | None,
        hardware_option(
            "How batches alternate: lamina rotational or fixed, afd pingpong; or serial.", _SPLIT
        ),
    ] = None
    pipeline_parallel: Annotated[
        UpTo64 | None, hardware_option("Stages that the model workers' layers are split into.", _LAMINA)
    ] = None
    experts: Annotated[
        Literal["tp", "ep"] | None,
        hardware_option("Experts split over a replica's workers (tp), or distributed (ep).", (LIVE_LAMINA,)),
    ] = None
    partition: Annotated[
        Literal["heads", "requests"] | None,
        hardware_option("What is distributed over attention workers.", _LAMINA),
    ] = None
    overlap: Annotated[
        bool | None, hardware_option("Send q before k and v are computed.", _LAMINA, opposite=True)
    ] = None
    stream_chunks: Annotated[
        UpTo64 | None, hardware_option("Chunks that a transfer is split into.", ("lamina", LIVE_LAMINA))
    ] = None
    stream_along: Annotated[
        Literal["requests", "heads"] | None,
        hardware_option("What a transfer is split along.", ("lamina", LIVE_LAMINA)),
    ] = None
    absorb: Annotated[
        Literal["model", "attention"] | None,
        hardware_option("MLA: the workers that project queries and outputs to and from the latent.", _LAMINA),
    ] = None
    routing: Annotated[
        str | None,
        hardware_option(
            "Mixture of experts: the load of experts: skewed, uniform or a CSV file.",
            ("lamina", "vllm", "afd", EMULATED),
            reach="files",
        ),
    ] = None
    expert_kernel: Annotated[
        Literal["deepgemm-masked", "deepgemm-masked-fp4", "megamoe-fp8", "megamoe-fp4"] | None,
        hardware_option("Experts separate from attention: masked products, or fused with exchange.", _SPLIT),
    ] = None
    wire: Annotated[
        Literal["bf16", "fp8"] | None,
        hardware_option("Format of what travels between both sides; fp8 is sent by kernels.", _SPLIT),
    ] = None
    kv_overcommit: Annotated[
        Annotated[float, Meta(ge=1, le=100)] | None,
        hardware_option(
            "KV capacity as a multiple of device memory; the rest is paged to the host.",
            ("lamina", LIVE_LAMINA),
            unit="x",
        ),
    ] = None
    kv_copy: Annotated[
        Literal["none", "host", "worker", "disk"] | None,
        hardware_option(
            "Second copy of KV, for when an attention worker is lost: in host memory, on the next attention "
            "worker, or, live, on disk; none by default.",
            ("lamina", LIVE_LAMINA),
        ),
    ] = None
    host: Annotated[
        str | None,
        hardware_option(
            "Host time of an iteration and each request, 5ms or 2ms,20us; or vllm-0.18, that server's with "
            "its front end; keys: in, serial, out, launch, gap, async=on, factor. Default: the cost set's.",
            (MODELLED,),
            reach="nothing",
        ),
    ] = None
    host_async: Annotated[
        bool | None, hardware_option("The host prepares an iteration during the previous one.", (MODELLED,))
    ] = None
    admission: Annotated[
        Literal["reserve", "grow"] | None,
        hardware_option("Reserve KV for the final length (default), or grow it and preempt.", _SEVERAL),
    ] = None
    prefix_sharing: Annotated[
        bool | None,
        hardware_option(
            "Store prompt prefixes that the trace marks as equal once; the default with --prefill.",
            _PAGED,
            opposite=True,
        ),
    ] = None
    kv_tokens: Annotated[
        Count | None,
        hardware_option(
            "KV capacity of all workers together; what fits by default.",
            (*_TIMELINE, LIVE_VLLM),
            unit="tokens",
        ),
    ] = None
    max_num_seqs: Annotated[
        Annotated[int, Meta(ge=1, le=1 << 20)] | None,
        hardware_option("Most requests that run at once.", (*_TIMELINE, LIVE_VLLM), unit="requests"),
    ] = None
    block_size: Annotated[
        Annotated[int, Meta(ge=1, le=4096)] | None,
        hardware_option("Tokens of a KV block.", _PAGED, unit="tokens"),
    ] = None
    gpu_memory_utilization: Annotated[
        Annotated[float, Meta(ge=0.1, le=1)] | None,
        hardware_option("Share of a device's memory in use.", (*_PAGED, EMULATED), unit="share"),
    ] = None
    prefill: Annotated[
        UpTo64 | Annotated[str, Meta(pattern="^(off|colocated|model|pool:.+)$")] | None,
        hardware_option(
            "Prompt KV is there already (off, default), computed with decoding (colocated) or on separate "
            "devices (pool:2xh100). Live: made up (off), computed by model workers (model) or by N others.",
            _PROMPTS,
            common=True,
            words=("off", "colocated", "model", "pool:"),
            reach="nothing",
        ),
    ] = None
    max_batched_tokens: Annotated[
        Annotated[int, Meta(ge=1, le=1 << 17)] | None,
        hardware_option(
            "Most tokens of an iteration, with --prefill; 2048, live lamina 512 of prompts, by default.",
            _PROMPTS,
            unit="tokens",
        ),
    ] = None
    instances: Annotated[
        Annotated[int, Meta(ge=1, le=1 << 14)] | None,
        hardware_option("Copies of the deployment behind a router.", _SEVERAL),
    ] = None
    router: Annotated[
        str | None,
        hardware_option(
            "Which instance gets a request: round-robin (default), least-requests, least-kv, prefix, fit, or "
            "module:Class.",
            _SEVERAL,
            reach="code",
        ),
    ] = None
    queue: Annotated[
        Literal["each", "global"] | None,
        hardware_option(
            "Requests wait at an instance (each, default), or before the router (global).", _SEVERAL
        ),
    ] = None
    iterations: Annotated[
        bool | None,
        hardware_option(
            "Store every iteration (default). Without them replays of billions of iterations fit, with TBT "
            "to 0.1 % and without pictures over time.",
            (PROMPTS,),
            opposite=True,
        ),
    ] = None
    mapping: Annotated[
        str | None,
        hardware_option("The policy that places data on a board's sides.", ("h2m2",), reach="nothing"),
    ] = None
    board: Annotated[
        str | None,
        hardware_option("Another board than the device's.", ("h2m2",), metavar="NAME|FILE", reach="files"),
    ] = None
    price: Annotated[
        tuple[str, ...],
        hardware_option(
            "Repeatable: price per hour instead of the catalogue's.",
            metavar="DEVICE=USD",
            common=True,
            reach="nothing",
        ),
    ] = ()
    power: Annotated[
        tuple[str, ...],
        hardware_option(
            "Repeatable: rated power instead of the catalogue's.", metavar="DEVICE=WATTS", reach="nothing"
        ),
    ] = ()
    price_basis: Annotated[
        Literal["rent", "purchase"] | None,
        hardware_option("Rents, or purchases over four years with power; rent where known by default."),
    ] = None

    emulate: Annotated[
        str | None,
        _live(
            "Devices such as h100,h20: workers wait as long as the cost set says that these take.",
            (LIVE_LAMINA, EMULATED),
            metavar="MODEL,ATTENTION",
            reach="nothing",
        ),
    ] = None
    slowdown: Annotated[
        Annotated[float, Meta(ge=1, le=1000)] | None,
        _live("Factor on all times with --emulate, for a slow host; 1 by default.", (EMULATED,), unit="x"),
    ] = None
    oversubscribe: Annotated[bool | None, _live("Allow more workers than cores.", (LIVE_LAMINA,))] = None
    dtype: Annotated[
        Literal["bf16", "fp16", "fp32"] | None,
        _live("Type of weights and KV; the model's by default.", (LIVE_LAMINA, LIVE_VLLM)),
    ] = None
    kv_dtype: Annotated[
        Literal["auto", "fp8", "int8"] | None,
        _live("Type of KV alone on CPUs, a byte a number: fp8 or int8.", (LIVE_LAMINA,)),
    ] = None
    chaos: Annotated[
        tuple[str, ...],
        _live(
            "Repeatable: kill a worker, as attention:1@t=3s, random@tokens=500, random*50.",
            (LIVE_LAMINA, EMULATED),
            metavar="WORKER[=HOW]@WHEN",
            reach="nothing",
        ),
    ] = ()
    ray: Annotated[
        str | None,
        _live(
            "Run workers as actors of this Ray cluster, auto or host:port.",
            (LIVE_LAMINA,),
            metavar="ADDRESS",
            reach="network",
        ),
    ] = None
    tensor_parallel: Annotated[
        UpTo64 | None,
        _live("Workers that share the model: GPUs, or threads on the cores of a CPU.", (LIVE_VLLM,)),
    ] = None
    max_model_len: Annotated[
        Count | None, _live("Longest request; the trace's longest by default.", (LIVE_VLLM,), unit="tokens")
    ] = None
    enforce_eager: Annotated[
        bool | None, _live("Compile nothing: starts sooner, runs slower.", (LIVE_VLLM,))
    ] = None
    runner_timeout: Annotated[
        Seconds | None, _live("How long vLLM may be silent.", (LIVE_VLLM,), unit="seconds")
    ] = None
    metrics_port: Annotated[
        Annotated[int, Meta(ge=0, le=65535)] | None,
        _live(
            "Serve Prometheus metrics meanwhile, on this port of 127.0.0.1; 0 is any.",
            (LIVE_LAMINA, LIVE_VLLM, OPENAI, EMULATED),
            unit="port",
            reach="network",
        ),
    ] = None

    url: Annotated[
        str | None,
        _server("The server, as http://127.0.0.1:8000.", (OPENAI,), metavar="URL", reach="network"),
    ] = None
    api: Annotated[Literal["completions", "chat"] | None, _server("The API to call.", (OPENAI,))] = None
    header: Annotated[
        tuple[Secret, ...],
        _server("Repeatable: a header of every request.", (OPENAI,), metavar="'K: V'", reach="credential"),
    ] = ()
    api_key_file: Annotated[
        str | None,
        _server(
            "File of the API key; by default LAMINABENCH_API_KEY or OPENAI_API_KEY.",
            (OPENAI,),
            kind="file",
            reach="credential",
        ),
    ] = None
    tokenizer: Annotated[
        str | None,
        _server("Send text, by this tokenizer.json or folder.", (OPENAI,), metavar="PATH", reach="files"),
    ] = None
    vocab: Annotated[
        Count | None, _server("Number of token ids; 10000 where unknown.", (OPENAI,), unit="tokens")
    ] = None
    timeout: Annotated[Seconds | None, _server("Limit of a whole request.", (OPENAI,), unit="seconds")] = None
    first_byte_timeout: Annotated[
        Seconds | None, _server("Limit until a response begins.", (OPENAI,), unit="seconds")
    ] = None
    retries: Annotated[
        Annotated[int, Meta(ge=0, le=100)] | None,
        _server("More attempts after an error that may pass.", (OPENAI,)),
    ] = None
    warm_up: Annotated[
        Annotated[int, Meta(ge=0, le=10_000)] | None,
        _server("Requests before the clock starts.", (OPENAI,), unit="requests"),
    ] = None
    connections: Annotated[
        Count | None,
        _server("Requests in flight with --mode saturate; 256 by default.", (OPENAI,), unit="requests"),
    ] = None
    client_workers: Annotated[UpTo64 | None, _server("Client processes.", (OPENAI,))] = None

    offline: Annotated[bool | None, _cut("Never download; use local files, else the profile.")] = None
    max_rows: Annotated[
        Annotated[int, Meta(ge=1, le=10**9)] | None,
        _cut("Most rows of a trace's file, however well it is compressed.", unit="n"),
    ] = None
    window: Annotated[
        str | None,
        _cut("Only requests that arrive in these seconds.", metavar="A:B", kind="window", reach="nothing"),
    ] = None
    scale_lengths: Annotated[Positive, _cut("Multiply prompt and output lengths.", unit="x")] = 1.0
    max_prompt: Annotated[Count | None, _cut("Longest prompt.", unit="tokens")] = None
    max_output: Annotated[Count | None, _cut("Longest output.", unit="tokens")] = None
    too_long: Annotated[Literal["truncate", "drop"], _cut("What happens to longer requests.")] = "truncate"
    sample: Annotated[
        Count | None, _cut("A random sample of this many requests, in whole sessions.", unit="n")
    ] = None
    num_requests: Annotated[
        Count | None, _cut("Only the first N requests.", common=True, unit="n", also="--num-prompts")
    ] = None
    request_rate: Annotated[
        Positive | None, _cut("Replace the arrival times: requests a second.", unit="x")
    ] = None
    burstiness: Annotated[
        Positive, _cut("Gamma shape of the gaps of --request-rate; 1 is Poisson, less is burstier.", unit="x")
    ] = 1.0
    rate_scale: Annotated[
        Positive, _cut("Scale the load: 2 means twice the rate.", common=True, unit="x")
    ] = 1.0
    seed: Annotated[Seed, _cut("Seed of all random numbers.")] = 0

    directory: Annotated[
        str | None,
        output_option(
            "Where the Run goes; runs/NAME-AND-TIME by default.",
            common=True,
            kind="folder",
            also="-o",
            reach="writes",
        ),
    ] = None
    no_out: Annotated[bool | None, output_option("Print only, store no Run.")] = None
    plot: Annotated[
        str | None,
        output_option(
            "Draw TBT and tokens/s over time: .png, .svg or .pdf.", common=True, kind="file", reach="writes"
        ),
    ] = None
    timeline: Annotated[
        str | None,
        output_option(
            "Perfetto trace of one window: .json or .json.gz.", _TIMELINE, kind="file", reach="writes"
        ),
    ] = None
    timeline_window: Annotated[
        str | None,
        output_option(
            "The window of --timeline, in seconds; two iterations from the middle by default.",
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
            f"{where} stores no request (it was imported, or is of an older version): type its command again",
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
    """Return a file's full path, valid from any folder; anything else unchanged."""
    # A name of the catalogue stays one, whatever file has that name here; of traces a file goes first.
    is_path = os.sep in value or value.endswith((".json", ".toml")) or name in ("trace", "api_key_file")
    return str(Path(value).absolute()) if is_path and Path(value).exists() else value
