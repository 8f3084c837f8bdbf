"""The replay use case: from a typed request to its result. Everything that replays calls this."""

from laminabench.requests.replay import ReplayRequest
from laminabench.systems.base import Replayed, Workload
from laminabench.workflows.replay.run import Result, replay, run

__all__ = ["ReplayRequest", "Replayed", "Result", "Workload", "replay", "run"]
