"""What a replay runs on: which class has which system, and what each of them offers."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

from laminabench.cli.output import Output
from laminabench.cli.replay_endpoint_options import FLAGS as ENDPOINT_FLAGS
from laminabench.cli.replay_endpoint_options import SYSTEM as ENDPOINT
from laminabench.errors import UserError

if TYPE_CHECKING:
    from laminabench.replay import Workload
    from laminabench.runs.manifest import Backend, Partial
    from laminabench.traces.table import Trace

# Systems that run, by the class that replays on them; all others are modelled only.
LIVE = {
    "lamina": "laminabench.cli.replay_live:LiveReplay",
    "vllm": "laminabench.cli.replay_vllm:VllmReplay",
    "openai": "laminabench.cli.replay_endpoint:EndpointReplay",
}
# Those of them that cannot be modelled: nobody knows what is behind them.
NOT_MODELLED = ("openai",)
# Flags of real vLLM alone.
_VLLM_ONLY = {
    "tensor_parallel": "--tensor-parallel",
    "max_model_len": "--max-model-len",
    "enforce_eager": "--enforce-eager",
    "runner_timeout": "--runner-timeout",
}
_MODELLED = "laminabench.cli.replay_modelled:ModelledReplay"


class Replaying(Protocol):
    """The flags of one call as something that replays, and what came of it."""

    name: Backend
    # `deployment` (str(), .describe()) and `model` (.name, .describe()).
    setup: Any
    # `outcome` and `summary`, once it has been replayed.
    replayed: Any
    # Why it ended before the trace did, if it did: the Run is kept, and `require_sound` raises after that.
    partial: Partial | None
    # Files that the Run keeps beside its tables, by name.
    beside: Mapping[str, bytes]

    @property
    def facts(self) -> dict[str, Any]:
        """Of the deployment, as it was built."""

    @property
    def coefficients(self) -> Sequence[dict[str, Any]]:
        """What modelled times are computed from."""

    def replay(self, trace: Trace, offered: Workload) -> None: ...

    def timeline(self, trace: Trace, offered: Workload) -> dict[str, Any]:
        """Draw one window."""

    def more(self) -> dict[str, Any]:
        """Fields of the result that only this one has."""

    def disturbed(self) -> dict[str, Any]:
        """What a picture over time marks."""

    def require_sound(self) -> None:
        """Raise CheckFailedError if the numbers are of something else than was asked for."""


def replaying(flags: dict[str, Any], given: set[str], out: Output, seed: int) -> Replaying:
    """What the flags ask for; a UserError if that cannot be had."""
    system = flags["system_name"]
    if system in NOT_MODELLED:
        if "backend" in given and flags["backend"] != "live":
            raise UserError("replay-not-modelled", f"{system} cannot be modelled: leave --backend out")
        flags["backend"] = "live"
    for flag, said in _VLLM_ONLY.items():
        if flag in given and (system, flags["backend"]) != ("vllm", "live"):
            raise UserError("replay-flag-unused", f"{said} is for --system vllm --backend live")
    if system != ENDPOINT and (others := sorted(given & set(ENDPOINT_FLAGS))):
        raise UserError(
            "replay-flag-unused",
            f"{ENDPOINT_FLAGS[others[0]]} is for --system {ENDPOINT}: {system} is not reached over HTTP here",
        )
    if flags["backend"] == "live" and system not in LIVE:
        raise UserError(
            "replay-not-live",
            f"{system} is modelled only; --backend live goes with --system {', '.join(LIVE)}",
        )
    module, _, name = (LIVE[system] if flags["backend"] == "live" else _MODELLED).partition(":")
    return cast("Replaying", getattr(importlib.import_module(module), name)(flags, given, out, seed))
