"""Rewrite a slice's program for one device: native operators between its products."""

from __future__ import annotations

from lamina.convert.fuse.fusing import Fused, Fusing, fuse
from lamina.convert.fuse.kernels import gated, norm, rotary, sum_lanes

__all__ = ["Fused", "Fusing", "fuse", "gated", "norm", "rotary", "sum_lanes"]
