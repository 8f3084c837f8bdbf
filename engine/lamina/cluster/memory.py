"""Memory that a cluster's weights, recurrent state and KV take on each device, before anything is loaded."""

from __future__ import annotations

from dataclasses import dataclass, replace

from lamina import host_memory
from lamina.cluster.layout import CPU, Layout
from lamina.gpu import is_gpu
from lamina.kv import ArenaShape
from lamina.pipeline import CoreOptions, EngineError, Partition, Schedule
from lamina.pipeline.arenas import arena_tokens, room_for_arenas
from lamina.pipeline.options import ModelFacts


@dataclass(frozen=True)
class ClusterMemory:
    """The devices' free bytes, and what workers of a layout need of them."""

    facts: ModelFacts
    layout: Layout
    schedule: Schedule
    partition: Partition
    free: dict[str, int]  # bytes, by device

    @property
    def model_on_gpu(self) -> bool:
        return any(map(is_gpu, self.layout.devices[: self.layout.model_workers]))

    @property
    def _stored(self) -> ArenaShape:
        """Return the shape of KV on all attention workers together."""
        shape = self.facts.kv_shape
        return replace(shape, kv_heads=shape.kv_heads * self.partition.copies)

    @property
    def _copies_in_memory(self) -> bool:
        return self.layout.kv_copies in ("host", "worker")

    def arena_tokens(self, options: CoreOptions, max_sequences: int) -> int:
        """Return the KV tokens of each attention worker's device memory."""
        pools, room = self.partition.pools, self._room_for_arenas()
        return arena_tokens(self._stored, self.facts, options, max_sequences, room, pools)

    def require(self, tokens: int, max_sequences: int, overcommit: float) -> int:
        """Refuse a model that does not fit; return the bytes that model workers have to spare."""
        # Where there are no GPUs device and host are the same memory.
        arenas = self._stored.nbytes(tokens, max_sequences, overcommit) * self.partition.pools
        states = self.facts.state_bytes * max_sequences
        spare = []
        for device, free in self.free.items():
            model, attention = self._workers_on(device)
            weights = self._weights_on(device)
            if device == CPU:
                # As they are loaded, and what attention workers multiply by: they are forked with it.
                weights += self.facts.weight_bytes + self.facts.absorbing_bytes
            parts = {
                "weights": weights,
                "recurrent state": states if model else 0,
                "KV": arenas * attention // self.layout.attention_workers,
                "copies of KV": arenas if self._copies_in_memory else 0,
            }
            needed = sum(parts.values())
            spare += [free - needed] if model else []
            if needed <= free:
                continue
            listed = " and ".join(f"{size / 1e9:,.1f} GB of {name}" for name, size in parts.items() if size)
            fewer = "sequences (max_sequences)" if states else "tensor-parallel workers"
            where = "" if device == CPU else f" on {device}"
            raise EngineError(
                "engine-out-of-memory",
                f"{listed} are {(needed - free) / 1e9:,.1f} GB more than the {free / 1e9:,.1f} GB that are "
                f"free{where}: take a smaller model, fewer KV tokens or fewer {fewer}",
            )
        return min(spare)

    def _workers_on(self, device: str) -> tuple[int, int]:
        """Return the number of model and attention workers on a device."""
        devices, attending = self.layout.devices, self.layout.attending
        model, attention = devices[: attending.start], devices[attending.start : attending.stop]
        return model.count(device), attention.count(device)

    def _weights_on(self, device: str) -> int:
        """Return the bytes of weights that workers on a device do not share."""
        shared, ranks = self.facts.weight_bytes, self.partition.ranks
        model_workers, _ = self._workers_on(device)
        if device == CPU and ranks == 1 and not self.model_on_gpu:
            return shared  # bound once, and forked with
        prefill = self.layout.prefill_workers if device == CPU else 0
        slices = max(len(self.schedule.slices_of(place)) for place in range(self.schedule.places))
        return shared * model_workers * slices // (self.schedule.slices * ranks) + shared * prefill

    def _room_for_arenas(self) -> int:
        """Return the bytes of all arenas: each has as much as the tightest worker has room for."""
        rooms = []
        for device, free in (self.free | {CPU: host_memory.free_bytes()}).items():
            _, workers = self._workers_on(device)
            room = room_for_arenas(free, self._weights_on(device), on_gpu=device != CPU)
            rooms += [room / workers] if workers else []
        return int(min(rooms) * self.layout.attention_workers) // (1 + self._copies_in_memory)
