"""Batches on their way through workers: what they are told, in what order they work, what they recorded."""

from lamina.pipeline.change import Change, Joined, State
from lamina.pipeline.check import check_schedule
from lamina.pipeline.keeper import Keeper
from lamina.pipeline.options import CoreOptions, EngineError
from lamina.pipeline.partition import Partition
from lamina.pipeline.records import Recorder, Records
from lamina.pipeline.roster import Choice, Revealed, Roster
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
