"""Batches on their way through workers: what they are told, in what order they work, what they recorded."""

from lamina.pipeline.batch_delta import BatchDelta, BatchSnapshot, Joined
from lamina.pipeline.batch_rows import BatchRows, Choice, Revealed
from lamina.pipeline.check import check_schedule
from lamina.pipeline.kv_slots import KvSlots
from lamina.pipeline.options import CoreOptions, EngineError
from lamina.pipeline.partition import Partition
from lamina.pipeline.records import Recorder, Records
from lamina.pipeline.schedule import Schedule, Turn

__all__ = [
    "Change",
    "Choice",
    "CoreOptions",
    "EngineError",
    "Joined",
    "Keeper",
    "Partition",
    "Recorder",
    "Records",
    "Revealed",
    "Roster",
    "Schedule",
    "State",
    "Turn",
    "check_schedule",
]
