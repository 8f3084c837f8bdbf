"""The columns of a Run's tables: names, types, meaning."""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa


class Column(NamedTuple):
    name: str
    type: pa.DataType
    doc: str


SECONDS, COUNT, NUMBER = pa.float64(), pa.int32(), pa.int64()
STATUS = pa.dictionary(pa.int8(), pa.string())

# Null where it never came to that.
REQUESTS = (
    Column("arrival_s", SECONDS, "when it entered the system; 0 in a saturated run"),
    Column("admitted_s", SECONDS, "when it first joined a batch"),
    Column("first_token_s", SECONDS, "end of its first iteration"),
    Column("finished_s", SECONDS, "end of its last iteration"),
    Column("prompt_tokens", COUNT, "KV tokens it came with"),
    Column("output_tokens", COUNT, "tokens it asks for"),
    Column("first_iteration", NUMBER, "of the batch it first joined"),
    Column("last_iteration", NUMBER, "of the batch it was in last"),
    Column("batch", COUNT, "the batch it was in last"),
    Column("status", STATUS, "done, rejected (could never fit) or unfinished (the run was stopped)"),
    Column("preemptions", COUNT, "how often it had to make room"),
)
# In the order of their starts; `iteration` counts from 0 in each batch.
ITERATIONS = (
    Column("batch", COUNT, "which batch"),
    Column("iteration", NUMBER, "its number in this batch"),
    Column("start_s", SECONDS, "when it started"),
    Column("duration_s", SECONDS, "until its tokens were there, host work included"),
    Column("size", COUNT, "requests in it, each makes one token"),
    Column("joined", COUNT, "of these, the ones that were not in the iteration before"),
    Column("kv_tokens", NUMBER, "KV tokens read"),
    Column("model_s", SECONDS, "time of model slices, all layers; null where the workers are gone"),
    Column("attention_s", SECONDS, "time of attention, all layers; null where the workers are gone"),
    Column("network_s", SECONDS, "time of transfers, all layers; unknown in a live run"),
    Column("host_s", SECONDS, "time of the host before the first slice"),
)
# Only there if a request was preempted, or a live replay interrupted and resumed: it ran in [first_iteration,
# last_iteration] of the batch without a break. A request's stints are in their order.
STINTS = (
    Column("request", NUMBER, "row of the request in requests.parquet"),
    Column("batch", COUNT, "the batch it was in"),
    Column("first_iteration", NUMBER, "of this batch"),
    Column("last_iteration", NUMBER, "of this batch"),
)
TABLES = {"requests": REQUESTS, "iterations": ITERATIONS, "stints": STINTS}


def schema(columns: tuple[Column, ...]) -> pa.Schema:
    return pa.schema([pa.field(column.name, column.type, metadata={"doc": column.doc}) for column in columns])
