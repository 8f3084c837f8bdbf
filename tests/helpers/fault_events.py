"""Fault events of tests, by position."""

from __future__ import annotations

from collections.abc import Iterable

from laminabench.util.live_progress import FaultEvent


def injected(number: int, worker: str, how: str, at_s: float) -> FaultEvent:
    return FaultEvent(at_s=at_s, workers=(worker,), why=f"--chaos: {how}", struck=how, number=number)


def replaced(
    workers: Iterable[str], why: str, noticed_s: float, resumed_s: float, requests: int, kv_tokens: int
) -> FaultEvent:
    return FaultEvent(
        at_s=noticed_s,
        workers=tuple(workers),
        why=why,
        resumed_s=resumed_s,
        requests=requests,
        kv_tokens=kv_tokens,
    )
