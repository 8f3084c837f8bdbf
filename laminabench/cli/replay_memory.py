"""What is printed of boards with two memories: what is where, and what was moved."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from laminabench.cli.replay_numbers import number, share


def memory_lines(memory: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """A line of what is held, one of who was busy, one of what was moved."""
    from laminabench.analysis.memory import NAMES

    held = ", ".join(f"{_gb(memory['hbm_bytes'][part]['mean'])} {name}" for part, name in NAMES.items())
    used, lpddr, wasted = (memory[name] for name in ("hbm_share", "lpddr_bytes", "wasted_bytes"))
    yield (
        "memory",
        f"HBM {share(used['mean'])} in use, {share(used['max'])} at most: {held}; "
        f"LPDDR {_gb(lpddr['mean'])}; {_gb(wasted['mean'])} empty in pages",
    )
    sides = f"HBM side {share(memory['hbm_busy_share'])}, LPDDR side {share(memory['lpddr_busy_share'])}"
    yield "busy", f"{sides} of the iterations' time"
    moved, copied = memory["moved_bytes"], memory["compacted_bytes"]
    changes = f"{memory['mapping_changes']:,} {'change' if memory['mapping_changes'] == 1 else 'changes'}"
    yield (
        "moved",
        f"{_gb(moved['total'])} in {changes} of mapping, "
        f"{_gb(moved['per_iteration'])} an iteration, {_gb(moved['max'])} at most; "
        f"{_gb(copied['total'])} of KV copied together; that takes "
        f"{share(memory['moving_share'])} of the time, {share(memory['hideable_share'])} of that "
        "could pass while LPDDR is idle",
    )


def _gb(found: float | None) -> str:
    return "-" if found is None else f"{number(found / 1e9)} GB"
