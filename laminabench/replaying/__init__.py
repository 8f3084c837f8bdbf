"""The use case: a typed request, and what a replay of it comes to. Everything that replays calls this."""

from laminabench.replaying.run import Result, replay, run
from laminabench.request import ReplayRequest
from laminabench.systems.base import Replayed, Workload

__all__ = ["ReplayRequest", "Replayed", "Result", "Workload", "replay", "run"]
