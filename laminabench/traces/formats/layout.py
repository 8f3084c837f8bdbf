"""A trace format as data: which column of which kind of file holds what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from laminabench.traces.formats.wording import name_of, printable
from laminabench.util.errors import UserError
from laminabench.util.suggest import listed, nearest

Container = Literal["delimited", "jsonlines", "parquet", "conversations"]


class Layout(msgspec.Struct, frozen=True):
    """Names are tried in order; a part without names is not in this format."""

    container: Container
    about: str
    arrival: tuple[str, ...] = ()
    prompt: tuple[str, ...] = ()
    output: tuple[str, ...] = ()
    session: tuple[str, ...] = ()
    blocks: tuple[str, ...] = ()
    # A fixed format is recognised by these columns and cannot do without its arrivals.
    signature: tuple[str, ...] = ()
    # Where the format does not say, the first row does.
    times: Literal["numbers", "dates", "either"] = "either"
    time_unit: Literal["s", "ms", "us", "ns"] = "s"
    block_tokens: int = 512


class Columns(msgspec.Struct, frozen=True):
    prompt: str
    output: str
    arrival: str | None = None
    session: str | None = None
    blocks: str | None = None

    def names(self) -> list[str]:
        return [name for part in PARTS if (name := getattr(self, part)) is not None]


PARTS = tuple(sorted(Columns.__struct_fields__))


def choose(layout: Layout, there: Sequence[str], requested: Mapping[str, str], where: str) -> Columns:
    """Choose which of a file's columns to read, by the user's options or the format."""
    chosen: dict[str, str | None] = {}
    names_there = [name_of(name) for name in there]
    missing: dict[str, str] = {}
    for part in PARTS:
        if part in requested:
            if requested[part] not in there:
                meant = nearest(requested[part], names_there)
                raise UserError("trace-no-column", f"{where}: no column {_quoted(requested[part])}; {meant}")
            chosen[part] = requested[part]
            continue
        names = getattr(layout, part)
        chosen[part] = next((name for name in names if name in there), None)
        needed = part in {"prompt", "output"} or (part == "arrival" and layout.signature)
        if needed and names and chosen[part] is None:
            missing[part] = _quoted(names[0]) if layout.signature else f"the {part}"
    if missing:
        options = ",".join(f"{part}=NAME" for part in missing)
        raise UserError(
            "trace-no-column",
            f"{where}: no column for {' or '.join(missing.values())}; there are: {listed(names_there)}; "
            f"name the right ones: laminabench traces import FILE --columns {options}",
        )
    used = [name for name in chosen.values() if name is not None]
    for name in used:
        if there.count(name) > 1:
            raise UserError(
                "trace-column-twice",
                f"{where}: column {_quoted(name)} appears {there.count(name)} times; rename one",
            )
        if used.count(name) > 1:
            raise UserError(
                "trace-column-twice",
                f"{where}: column {_quoted(name)} cannot be two things at once; see --columns",
            )
    prompt, output = chosen["prompt"], chosen["output"]
    assert prompt is not None
    assert output is not None
    return Columns(prompt, output, chosen["arrival"], chosen["session"], chosen["blocks"])


def _quoted(name: str) -> str:
    return f'"{printable(name[:30])}"'


_GENERIC = Layout(
    "delimited",
    "any CSV with a header, its columns named by --columns",
    arrival=("arrival_s", "arrived_at", "arrival_time", "timestamp", "Timestamp", "TIMESTAMP", "time"),
    prompt=(
        *("prompt_tokens", "num_prefill_tokens", "input_length", "input_tokens", "prompt_len", "input_len"),
        *("prompt_length", "ContextTokens", "Request tokens"),
    ),
    output=(
        *("output_tokens", "num_decode_tokens", "output_length", "output_len", "completion_tokens"),
        *("response_tokens", "generated_tokens", "GeneratedTokens", "Response tokens"),
    ),
    session=("session", "session_id", "Session ID", "conversation_id"),
)
_BLOCKS = ("prefix_blocks", "hash_ids", "blocks")


def _fixed(container: Container, about: str, arrival: str, prompt: str, output: str, **more: Any) -> Layout:
    """Return a format that is known by its columns."""
    signature = (arrival, prompt, output)
    return Layout(container, about, (arrival,), (prompt,), (output,), signature=signature, **more)


_AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_BURSTGPT = ("Timestamp", "Request tokens", "Response tokens")
_VIDUR = ("arrived_at", "num_prefill_tokens", "num_decode_tokens")

FORMATS: Mapping[str, Layout] = {
    "azure": _fixed("delimited", "Azure LLM inference traces, 2023 and 2024", *_AZURE, times="dates"),
    "mooncake": _fixed(
        "jsonlines",
        "Mooncake (Kimi) traces with prefix blocks",
        *("timestamp", "input_length", "output_length"),
        blocks=("hash_ids",),
        times="numbers",
        time_unit="ms",
    ),
    "burstgpt": _fixed("delimited", "BurstGPT", *_BURSTGPT, session=("Session ID",), times="numbers"),
    "sharegpt": Layout("conversations", "ShareGPT conversations as JSON, counted with a tokenizer"),
    "sharegpt-lengths": Layout(
        "delimited",
        "lengths of ShareGPT conversations, as Sarathi-Serve has them",
        prompt=("num_prefill_tokens",),
        output=("num_decode_tokens",),
        signature=("num_prefill_tokens", "num_decode_tokens", "num_total_tokens", "pd_ratio"),
    ),
    "vidur": _fixed("delimited", "Vidur's processed traces", *_VIDUR, times="numbers"),
    "csv": _GENERIC,
    "jsonl": replace(_GENERIC, container="jsonlines", about="any JSON lines", blocks=_BLOCKS),
    "parquet": replace(
        _GENERIC, container="parquet", about="laminabench's own, or any other", blocks=_BLOCKS
    ),
}
