"""What a plan is asked: which requests, how fast, within which budget, from which devices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from laminabench.catalog.costs import CostSet
from laminabench.catalog.models import ModelShape
from laminabench.catalog.network import Network, parse_network
from laminabench.plan.candidate import Candidate
from laminabench.systems.modelled.setup import Setup
from laminabench.systems.registry import system
from laminabench.traces.table import Trace

PlanMode = Literal["saturate", "open"]
# In an open replay: how long 99 of 100 requests may wait to be let in.
SLO_QUEUEING_P99_S = 1.0


@dataclass(frozen=True, slots=True)
class Question:
    """Everything but the candidates; the same for all of them."""

    trace: Trace
    model: ModelShape
    costs: CostSet
    slo_tbt_p99_ms: float
    mode: PlanMode = "saturate"
    slo_queueing_p99_s: float = SLO_QUEUEING_P99_S
    network: Network | None = None  # each system's own, if None
    host_async: bool = False

    def setup(self, candidate: Candidate, most_requests: int | None = None) -> Setup:
        """The candidate as `replay` takes it; its own limit of requests at once, if none is given."""
        return Setup(
            self.model,
            candidate.deployment,
            self.costs,
            self.network or parse_network(system(candidate.system).NETWORK),
            batches=candidate.batches,
            host_async=self.host_async,
            max_num_seqs=most_requests or candidate.most_requests,
        )
