"""The engines that can move messages, and which of them two processes use."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import NamedTuple, Protocol, cast

from lamina.fhbn.channel import ChannelSpec, Receiver, Sender
from lamina.fhbn.control import Control, Deadline, Place
from lamina.fhbn.errors import HandshakeError

# From best to worst; `auto` takes the first that both ends have, but softnic, which is a test bench.
_MODULES = {
    "shm": "lamina.fhbn.shm",
    "verbs": "lamina.fhbn.verbs:VERBS",
    "mlx5": "lamina.fhbn.verbs:MLX5",
    "softnic": "lamina.fhbn.softnic:ENGINE",
    "gloo": "lamina.fhbn.gloo",
}
_AUTOMATIC = ("shm", "verbs", "mlx5", "gloo")
# Engines that may not reach the peer, with the reason why that is unknown.
_DOUBTED = dict.fromkeys(("verbs", "mlx5"), "lamina.fhbn.verbs:off_the_way")
# Those whose ends can be operations on a GPU's stream, and why the others' cannot be.
_ON_STREAMS = ("shm", "mlx5", "softnic")
_ON_THE_HOST = {
    "verbs": "the host posts its messages, and none can be operations on a GPU's stream: ask for mlx5, which "
    "takes a ConnectX on each side",
}
NETWORKS = ("auto", *_MODULES)  # of workers


class Engine(Protocol):
    """A module or an object. `receiver` and `sender` run at the same time, one in each process."""

    NEEDS: str  # what it takes, for people
    VERIFIED: str  # on what hardware it was

    def missing(self, here: Place, there: Place) -> str | None:
        """Return why this process cannot use it with that place, in words that follow "because"; None if it
        can.
        """

    def receiver(self, control: Control, spec: ChannelSpec, deadline: Deadline) -> Receiver:
        """Make the receiving end."""

    def sender(self, control: Control, spec: ChannelSpec, deadline: Deadline) -> Sender:
        """Make the sending end."""


def add(name: str, module: str) -> None:
    """Register an external engine, such as one that is only used in comparisons."""
    _MODULES[name] = module


def names() -> tuple[str, ...]:
    """Return the valid networks of a channel, added engines included."""
    return "auto", *_MODULES


def engine(name: str) -> Engine:
    """Import and return the engine of this name."""
    return cast(Engine, pkgutil.resolve_name(_MODULES[name]))


def require_network(network: str) -> None:
    """Raise a ValueError unless it names an engine, or leaves the choice to us."""
    if network not in names():
        raise ValueError(f"network '{network}' is unknown: give one of {', '.join(names())}")


class Available(NamedTuple):
    """Requested engines, best first."""

    usable: list[str]
    missing: dict[str, str]  # why others cannot be used, in words that follow "because"


def find(
    network: str, here: Place, there: Place, own_host: str = "", *, on_stream: bool = False
) -> Available:
    """Return the engines usable at `own_host` to reach `there`; raise a HandshakeError if none is."""
    choices = _AUTOMATIC if network == "auto" else (network,)
    reasons: dict[str, str | None] = {}
    for name in choices:
        if on_stream and name not in _ON_STREAMS:
            reasons[name] = _ON_THE_HOST.get(name, "it has no ends on a GPU's stream")
        else:
            doubt = pkgutil.resolve_name(_DOUBTED[name]) if len(choices) > 1 and name in _DOUBTED else None
            reasons[name] = (doubt and doubt(here, there, own_host)) or engine(name).missing(here, there)
    available = Available(
        [name for name, reason in reasons.items() if reason is None],
        {name: reason for name, reason in reasons.items() if reason is not None},
    )
    if not available.usable:
        raise HandshakeError("channel-network-unusable", because(available.missing))
    return available


def because(missing: Mapping[str, str]) -> str:
    """Return why these cannot be used."""
    return "; ".join(f"{name} cannot be used because {reason}" for name, reason in missing.items())


def best(ours: Sequence[str], theirs: Sequence[str]) -> str:
    """Return the best that both have."""
    for name in ours:
        if name in theirs:
            return name
    raise HandshakeError(
        "channel-no-common-network",
        f"the two ends have no network in common: this one has {', '.join(ours)}, "
        f"the other one {', '.join(theirs)}",
    )


def passed_over(chosen: str, ours: Available, theirs: Available, peer: str) -> str:
    """Return why it is no better one; nothing if there is none."""
    at_peer = {name: f"{peer} says: {reason}" for name, reason in theirs.missing.items()}
    missing = at_peer | ours.missing
    better = takewhile(lambda name: name != chosen, _MODULES)
    return because({name: missing[name] for name in better if name in missing})
