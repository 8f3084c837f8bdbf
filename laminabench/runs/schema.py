"""The columns of a Run's tables: names, types, meaning."""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa


class Column(NamedTuple):
    name: str
    type: pa.DataType
    doc: str


SECONDS, COUNT, NUMBER = pa.float64(), pa.int32(), pa.int64()
FLAG, TEXT = pa.bool_(), pa.string()
STATUS = pa.dictionary(pa.int8(), pa.string())

# Null where it never happened.
REQUESTS = (
    Column("arrival_s", SECONDS, "when it entered the system; 0 in a saturated run"),
    Column("admitted_s", SECONDS, "when it first joined a batch, or its prompt was begun"),
    Column("first_token_s", SECONDS, "end of the first iteration that made a token for it"),
    Column("finished_s", SECONDS, "end of its last iteration"),
    Column("prompt_tokens", COUNT, "KV tokens it came with"),
    Column("output_tokens", COUNT, "tokens it asks for"),
    Column("first_iteration", NUMBER, "that made a token for it, of the batch it first joined"),
    Column("last_iteration", NUMBER, "of the batch it was in last"),
    Column("batch", COUNT, "the batch it was in last"),
    Column(
        "status", STATUS, "done, rejected (could never fit), unfinished (it was stopped) or failed (an error)"
    ),
    Column("preemptions", COUNT, "how often it had to make room"),
)
# In the order of their starts; `iteration` counts from 0 in each batch.
ITERATIONS = (
    Column("batch", COUNT, "which batch"),
    Column("iteration", NUMBER, "its number in this batch"),
    Column("start_s", SECONDS, "when it started"),
    Column("duration_s", SECONDS, "until its tokens were there, host work included"),
    Column("size", COUNT, "requests in it that get a token, one each"),
    Column("joined", COUNT, "of these, the ones that were not in the iteration before"),
    Column("kv_tokens", NUMBER, "KV tokens read"),
    Column("model_s", SECONDS, "time of model slices, all layers; null if the workers were lost"),
    Column("attention_s", SECONDS, "time of attention, all layers; null if the workers were lost"),
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
# Only for a replay observed from outside: pieces of streams, in order of arrival.
CHUNKS = (
    Column("request", NUMBER, "row of the request in requests.parquet"),
    Column("at_s", SECONDS, "when the client had it"),
    Column("tokens", COUNT, "tokens in it, at least one"),
)
# Its calls, in the order of the requests.
CALLS = (
    Column("due_s", SECONDS, "when it was to be sent: by its timestamp, or when its place was free"),
    Column("sent_s", SECONDS, "when its first attempt was sent"),
    Column("headers_s", SECONDS, "first byte of the answer to its last attempt"),
    Column("attempts", COUNT, "how often it was sent"),
    Column("status_code", COUNT, "of the answer to its last attempt"),
    Column("prompt_counted", NUMBER, "prompt tokens, as the server says"),
    Column("completion_counted", NUMBER, "tokens made, as the server says"),
    Column("even", FLAG, "the tokens per chunk, or their times, are unknown: they were spread evenly"),
    Column("error", TEXT, "why it failed, empty if it did not"),
)
# Only for boards that map heads to two memories: a row an iteration, in order, with the state of its board's
# memories.
MEMORY = (
    Column(
        "qkv_heads", COUNT, "heads of the QKV projection on the HBM side; of a policy that maps layers, these"
    ),
    Column("attention_groups", COUNT, "KV groups on the HBM side, or layers"),
    Column("fc_heads", COUNT, "heads, or layers, whose part of what follows attention is on the HBM side"),
    Column("hbm_qkv_bytes", NUMBER, "HBM allocated to weights of the QKV projection"),
    Column("hbm_kv_bytes", NUMBER, "HBM allocated to KV"),
    Column("hbm_fc_bytes", NUMBER, "HBM allocated to weights of output projection, feed-forward and LM head"),
    Column("hbm_free_bytes", NUMBER, "HBM allocated to nothing"),
    Column("lpddr_bytes", NUMBER, "LPDDR allocated, whatever to"),
    Column("wasted_bytes", NUMBER, "allocated on both sides and holding nothing: the rest of pages"),
    Column("moved_bytes", NUMBER, "moved from one side to the other before the iteration"),
    Column("compacted_bytes", NUMBER, "KV copied within a side before it, so that fewer pages hold it"),
    Column("moving_s", SECONDS, "how long moving and copying that takes"),
    Column("hidden_s", SECONDS, "the part that could overlap the previous iteration, while LPDDR was idle"),
    Column("hbm_busy_s", SECONDS, "the HBM side computing or reading"),
    Column("lpddr_busy_s", SECONDS, "the LPDDR side computing or reading"),
)
# Only for a replay that computed prompts alongside decoding: a row an iteration, in order.
PROMPTS = (Column("prompt_tokens", COUNT, "tokens of prompts that it computed"),)
# Only for a replay whose prompts were computed by separate devices: a row an iteration of one of their
# engines, those of an engine in order.
POOL = (
    Column("engine", COUNT, "which engine, all instances' counted through"),
    Column("start_s", SECONDS, "when it started"),
    Column("duration_s", SECONDS, "until it ended, host work included"),
    Column("busy_s", SECONDS, "time of model slices and attention, all layers"),
    Column("prompts", COUNT, "prompts that were whole with it"),
    Column("made", COUNT, "of these, the ones that got their first token from it"),
    Column("prompt_tokens", COUNT, "tokens of prompts that it computed"),
)
# The time between a first token from those devices and the second token.
GAPS = (
    Column("request", NUMBER, "row of the request in requests.parquet"),
    Column("at_s", SECONDS, "when the second token was there"),
    Column("gap_s", SECONDS, "since the one before"),
)
# Only for a replay that stored no rows of iterations: how many tokens had which gap. Gaps are in classes no
# wider than a thousandth, each by its middle.
TALLY = (
    Column("gap_s", SECONDS, "between two tokens"),
    Column("gap_tokens", NUMBER, "tokens with such a gap before them"),
)
TABLES = {
    "requests": REQUESTS,
    "iterations": ITERATIONS,
    "stints": STINTS,
    "chunks": CHUNKS,
    "calls": CALLS,
    "memory": MEMORY,
    "prompts": PROMPTS,
    "pool": POOL,
    "gaps": GAPS,
    "tally": TALLY,
}
# Tables that an outcome may lack.
OPTIONAL = ("memory", "prompts", "pool", "gaps")


def schema(columns: tuple[Column, ...]) -> pa.Schema:
    return pa.schema([pa.field(column.name, column.type, metadata={"doc": column.doc}) for column in columns])
