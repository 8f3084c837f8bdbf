"""vLLM as the papers measure it: homogeneous tensor parallelism, paged KV, prefill stripped out."""

from __future__ import annotations

from laminabench.catalog.deployment import Deployment
from laminabench.catalog.models import ModelShape
from laminabench.requests.replay import taken_by
from laminabench.systems.modelled.homogeneous import BLOCK_TOKENS, build, most_at_once
from laminabench.systems.modelled.setup import Modelled, Setup, by_size
from laminabench.systems.modelled.system import EVERY, PROMPTS, System, of_today


class Vllm(System):
    """A vLLM server: one batch on one kind of device."""

    NAME = "vllm"
    COLOUR, MARKER = "#d55e00", "triangle-up"
    BASELINE = True
    TAKES = EVERY | PROMPTS | taken_by("vllm")
    MAX_REQUESTS = 1024  # on large devices
    BLOCK_TOKENS = BLOCK_TOKENS

    def default_deployment(self, model: ModelShape) -> str:
        """Return v2 Table 5's; of experts H200, with a quarter of their memory and more for KV."""
        if model.experts:
            # Of one device no split costs about the same.
            return str(of_today(model, 0.75, least=2))
        return by_size(model, "2xh100", "4xh100")

    def engines(self, deployment: Deployment) -> int:
        """Return one engine for every data-parallel group."""
        return deployment.model.shared().dp

    def most_requests(self, deployment: Deployment) -> int:
        """Return the limit of vLLM of today on this device, of all its engines."""
        return self.engines(deployment) * most_at_once(deployment.model.device)

    def _build(self, setup: Setup) -> Modelled:
        self.require_runs_on(setup.deployment)
        return build(setup)


SYSTEM = Vllm()
