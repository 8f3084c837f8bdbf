"""One message of every kind that an engine's processes send to each other."""

from __future__ import annotations

import numpy as np

from lamina.cluster import messages as wire
from lamina.cluster.layout import Layout
from lamina.pipeline.batch_rows import BatchDelta, Joined, PromptPart, Revealed
from lamina.pipeline.options import ModelFacts
from lamina.pipeline.partition import Partition
from lamina.pipeline.records import WorkRecords

_INTS = np.arange(3, dtype=np.int64)
_TOKENS = np.arange(5, dtype=np.int32)
_PARTITION = Partition("heads", 1, 1, 4, 2)
_SOURCE = wire.ModelSource({"model_type": "llama", "hidden_size": 64}, "float32", "carry", "safetensors")
_CONFIG = wire.WorkerConfig(
    name="attention-0",
    host="127.0.0.1",
    address="127.0.0.1:1",
    secret=b"s" * 32,
    core=0,
    device="cpu",
    kind="attention",
    number=0,
    layout=Layout(),
    slices=3,
    partition=_PARTITION,
    most_rows=8,
    max_positions=2048,
    arena_tokens=100,
    overcommit=0.0,
    decode_only=False,
    overlap=False,
    backend="python",
    spin_s=0.0,
)
_DELTA = BatchDelta(
    forks=_INTS.reshape(1, 3),
    left=_INTS,
    joined=Joined(name=_INTS, token=_INTS, position=_INTS),
    prompts={7: _TOKENS},
    parts=[PromptPart(1, 0, 5, 9, 0, 0, _TOKENS)],
)
_REVEALED = Revealed(_INTS, np.ones(3, np.float32), _INTS.reshape(3, 1), np.ones((3, 1), np.float32))
_FACTS = ModelFacts(256, 2048, (1,), 2, 4, 2, 16, 0, "float32", 4, 1 << 20)

SPOKEN: tuple[wire.AnyMessage, ...] = (
    wire.Plan(0, 3, 4, active=True, delta=_DELTA),
    wire.Peers({"model-0": "127.0.0.1:1", "attention-0": "127.0.0.1:2"}),
    wire.Regroup(1, 5, frozenset({0, 1}), _PARTITION),
    wire.Compute(5, _TOKENS, 1, [0, 1]),
    wire.Forget(5),
    wire.Order("activity"),
    wire.Listening("127.0.0.1:1", 0),
    wire.Ready(0, {"shm": ""}),
    wire.Lost("attention-0 is gone", 0),
    wire.Failed("no memory"),
    wire.ChosenTokens(0, _INTS, _REVEALED),
    wire.PromptsComputed(0, 7),
    wire.KvStored(3),
    wire.PrefillFailed(3, "no memory"),
    wire.ArenaState(9, 1, 2),
    wire.Activity(0.1, 0.2, 0.3, 4),
    wire.Convert(_SOURCE),
    wire.Start(_SOURCE, [_CONFIG]),
    wire.Reap([1, 2], kill=True),
    wire.Measure(["cuda:0"]),
    wire.Free({"cuda:0": 1 << 36}),
    wire.Started([1, 2]),
    wire.Ends({1: 0, 2: 9}),
    wire.Refused("engine-kv-twice", "the KV memory is given twice"),
    WorkRecords(np.arange(12, dtype=np.int64).reshape(2, 6), _INTS.reshape(1, 3), 5, more=False),
    _FACTS,
)
