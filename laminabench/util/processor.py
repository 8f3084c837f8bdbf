"""What this machine's processor is called."""

from __future__ import annotations

import contextlib
import platform
from pathlib import Path


def processor() -> str:
    """Its name, and the numbers of its design: in virtual machines many have the same name."""
    facts: dict[str, str] = {}
    with (
        contextlib.suppress(OSError),
        Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as lines,
    ):
        for line in lines:
            name, colon, value = line.partition(":")
            if not colon:  # of the first core, this was all
                break
            facts[name.strip()] = value.strip()
    if "model name" not in facts:
        return platform.processor() or platform.machine()
    return "{} (family {}, model {})".format(
        *(facts.get(name, "unknown") for name in ("model name", "cpu family", "model"))
    )
