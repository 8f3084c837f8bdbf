"""Batches on their way through workers: what workers are sent, their order of work, and their records."""

from lamina.pipeline.batch_rows import (
    BatchDelta,
    BatchRows,
    BatchSnapshot,
    Choice,
    Joined,
    Landed,
    PromptPart,
    Revealed,
    Spent,
)
from lamina.pipeline.kv_slots import KvSlots
from lamina.pipeline.options import CoreOptions, EngineError
from lamina.pipeline.partition import Partition, Schedule, Turn
from lamina.pipeline.records import Recorder, Records, check_schedule
from lamina.pipeline.sequence_states import SequenceStates, states_of

__all__ = [
    "BatchDelta",
    "BatchRows",
    "BatchSnapshot",
    "Choice",
    "CoreOptions",
    "EngineError",
    "Joined",
    "KvSlots",
    "Landed",
    "Partition",
    "PromptPart",
    "Recorder",
    "Records",
    "Revealed",
    "Schedule",
    "SequenceStates",
    "Spent",
    "Turn",
    "check_schedule",
    "states_of",
]
