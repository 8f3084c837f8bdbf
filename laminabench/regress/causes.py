"""Why a case may have moved: what differs between what its golden came from and what it comes from now."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

# How many differences of one kind are worth naming.
_NAMED = 4
_NONE = object()

# What each part of the facts is called, in the order in which it explains.
_INPUTS = {
    "case": "the case itself",
    "trace": "the trace",
    "coefficients": "cost coefficients",
    "deployment": "the deployment or its price",
    "devices": "data sheets",
    "model": "the model",
    "host": "the machine",
}


def causes(golden: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[str, ...]:
    """The likely causes, a sentence each; what a replay is given comes before what it is done with."""
    found = []
    for part, called in _INPUTS.items():
        differing = list(_differences(golden.get(part, {}), now.get(part, {})))
        if differing:
            more = f" and {len(differing) - _NAMED} more" if len(differing) > _NAMED else ""
            found.append(f"{called}: {'; '.join(differing[:_NAMED])}{more}")
    return (*found, _code(golden["laminabench"], now["laminabench"], explained=bool(found)))


def inputs_differ(golden: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether a golden tells of other inputs than there are now; which code used them is not one."""
    return any(golden.get(part) != now.get(part) for part in _INPUTS if part != "host")


def _code(golden: Mapping[str, Any], now: Mapping[str, Any], *, explained: bool) -> str:
    """What is known of the code's own share."""
    was, is_ = _version(golden), _version(now)
    if was != is_:
        return (
            f"{'perhaps also the code' if explained else 'nothing but the code'}: laminabench {was} -> {is_}"
        )
    if "dirty" in is_:
        return f"changes to the code that are not committed, perhaps: laminabench {is_} then and now"
    if explained:
        return f"not the code: laminabench {is_} then and now"
    return f"nothing that is recorded: laminabench {is_}, the same inputs"


def _version(facts: Mapping[str, Any]) -> str:
    return f"{facts['version']} ({facts['commit'] or 'no commit known'})"


def _differences(golden: Any, now: Any, path: str = "") -> Iterator[str]:
    if isinstance(golden, dict) and isinstance(now, dict):
        for key in dict.fromkeys([*golden, *now]):
            yield from _differences(golden.get(key, _NONE), now.get(key, _NONE), f"{path} {key}".strip())
    elif golden != now:
        yield f"{path} {_said(golden)} -> {_said(now)}{_change(golden, now)}"


def _said(value: Any) -> str:
    if value is _NONE:
        return "not there"
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    # Checksums and sources are told apart by their beginning.
    return text if len(text) <= 40 else f"{text[:12]}…"


def _change(golden: Any, now: Any) -> str:
    numbers = all(isinstance(each, int | float) and not isinstance(each, bool) for each in (golden, now))
    return f" ({now / golden - 1:+.3g})".replace("+-", "-") if numbers and golden else ""
