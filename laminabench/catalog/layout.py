"""Parallelism of a model across devices: tensor, expert, data and pipeline, written `tp4dp2ep8`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from laminabench.util.errors import UserError

# Tensor parallelism stays within a node: the cost sets' collectives were measured there.
NODE_DEVICES = 8

_PIECE = re.compile(r"(tp|dp|ep|pp)(\d{1,4})")
_LOW_LATENCY = "ll"


@dataclass(frozen=True, slots=True, order=True)
class Layout:
    """Stages of `tp` x `dp` devices. Attention is split `tp` ways, in `dp` groups with requests of their own.

    Experts are distributed over `ep` of a stage's devices, each of them split over what is left of these.
    Groups reach the experts by gathering all tokens, or each token is sent to its experts' devices
    (DeepEP's low-latency kernels): across nodes always, within a node with `low_latency`, written `dp8ep8ll`.
    """

    tp: int = 1
    dp: int = 1
    ep: int = 1
    pp: int = 1
    low_latency: bool = False

    @property
    def dispatches(self) -> bool:
        """Whether tokens are sent to the devices of their experts."""
        return self.dp > 1 and (self.low_latency or self.nodes > 1)

    @property
    def stage(self) -> int:
        """Devices of a pipeline stage."""
        return self.tp * self.dp

    @property
    def nodes(self) -> int:
        """Number of nodes that a stage is spread over."""
        return -(-self.stage // NODE_DEVICES)

    @property
    def devices(self) -> int:
        return self.stage * self.pp

    @property
    def expert_tp(self) -> int:
        """The number of devices over which each expert is split."""
        return self.stage // self.ep

    @property
    def plain(self) -> bool:
        """True for tensor parallelism alone, which needs not be written."""
        return self == Layout(self.tp)

    def __str__(self) -> str:
        pieces = {"tp": self.tp, "dp": self.dp, "ep": self.ep, "pp": self.pp}
        text = "".join(f"{name}{size}" for name, size in pieces.items() if size > 1) or "tp1"
        return f"{text}{_LOW_LATENCY}" if self.low_latency else text


# A number alone is tensor parallelism over so many.
Split = Layout | int


def layout_of(split: Split) -> Layout:
    return split if isinstance(split, Layout) else Layout(split)


def parse_layout(text: str, devices: int) -> Layout:
    """Read `dp8ep8` for so many devices; what is left of them is tensor parallelism unless it says."""
    low_latency = text.endswith(_LOW_LATENCY)
    text = text.removesuffix(_LOW_LATENCY)
    sizes = {name: int(size) for name, size in _PIECE.findall(text)}
    if (
        not sizes
        or _PIECE.sub("", text)
        or min(sizes.values()) < 1
        or len(_PIECE.findall(text)) != len(sizes)
    ):
        raise UserError(
            "deployment-bad-layout",
            f"layout {text!r} cannot be read; write tp, dp, ep, pp with their sizes, as dp8ep8 or dp8ep8ll",
        )
    others = sizes.get("dp", 1) * sizes.get("pp", 1)
    layout = Layout(**{"tp": max(1, devices // others), **sizes}, low_latency=low_latency)
    if layout.devices != devices or layout.stage % layout.ep:
        why = (
            f"is of {layout.devices} devices, not of {devices}"
            if layout.devices != devices
            else f"deals experts out over {layout.ep} devices of a stage, which has {layout.stage}"
        )
        raise UserError(
            "deployment-bad-layout",
            f"layout {text!r} {why}; tp x dp x pp is the number of devices, and ep divides tp x dp",
        )
    return layout
