"""Whether workers can be where Ray has put them, and which of a node's cores each takes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace

from lamina.cluster.config import WorkerConfig
from lamina.cluster.ray.worker import Spot, has_weights, installed_version
from lamina.pipeline.facts import ModelFacts
from lamina.pipeline.options import EngineError


def require_version(names: Sequence[str], spots: Sequence[Spot]) -> None:
    """An EngineError unless all nodes have the front end's package."""
    own = installed_version()
    for name, spot in zip(names, spots, strict=True):
        if spot.version != own:
            raise EngineError(
                "ray-version-differs",
                f"{name} did not start: {spot.host} has laminabench {spot.version} and the front end {own}: "
                "install the same one on every node",
            )


def require_memory(facts: ModelFacts, configs: Sequence[WorkerConfig], spots: Sequence[Spot]) -> None:
    """What does not fit on a node is refused before it is loaded there."""
    needs: defaultdict[str, float] = defaultdict(float)
    names: defaultdict[str, list[str]] = defaultdict(list)
    for config, spot in zip(configs, spots, strict=True):
        names[spot.kernel].append(config.name)
        if not has_weights(config.kind):
            share = config.partition.pools / config.partition.workers
            needs[spot.kernel] += facts.token_bytes * config.arena_tokens * share
        elif not spot.loaded:  # as they are loaded, and as slices have them: packed, or a rank's share
            needs[spot.kernel] += facts.weight_bytes * (1 + 1 / config.partition.ranks)
    for spot in spots:
        if needs[spot.kernel] > spot.free_bytes:
            raise EngineError(
                "engine-out-of-memory",
                f"{', '.join(names[spot.kernel])} need {needs[spot.kernel] / 1e9:,.1f} GB on {spot.host}, "
                f"and {spot.free_bytes / 1e9:,.1f} GB are free there: take a smaller model, fewer KV tokens, "
                "or more nodes",
            )


def at_home(
    configs: Sequence[WorkerConfig], spots: Sequence[Spot], cores: Counter[tuple[str, int]], *, spans: bool
) -> list[WorkerConfig]:
    """With cores of their nodes, which are noted in `cores`, and addresses where hosts are several."""
    placed, shared = [], False
    for config, spot in zip(configs, spots, strict=True):
        core = min(spot.cores, key=lambda one: (cores[spot.kernel, one], one))
        cores[spot.kernel, core] += 1
        shared |= cores[spot.kernel, core] > 1
        placed.append(replace(config, core=core, host=spot.host) if spans else replace(config, core=core))
    # Where workers share a core, one that looks keeps another one from working.
    return [replace(config, spin_s=0.0) for config in placed] if shared else placed
