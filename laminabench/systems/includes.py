"""The contents of a modelled answer in one line: prompts, kernels, assumptions and the known error."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import NamedTuple

from laminabench.util.json import Json

INCLUDES = "Includes: "


class Includes(NamedTuple):
    """The contents of modelled numbers, a few words each."""

    prompts: tuple[str, ...]
    kernels: tuple[str, ...]
    assumed: tuple[str, ...]
    error: tuple[str, ...]

    def __str__(self) -> str:
        assumed = f"assumed: {', '.join(self.assumed)}" if self.assumed else ""
        error = f"error: {'; '.join(self.error)}" if self.error else ""
        parts = [*filter(None, (", ".join(self.prompts), ", ".join(self.kernels), assumed, error))]
        return f"{INCLUDES}{'; '.join(parts)}" if parts else ""

    def describe(self) -> dict[str, Json]:
        return {name: list(texts) for name, texts in self._asdict().items()}


def together(several: Iterable[Includes]) -> Includes:
    """Return what several answers include, each text once."""
    parts = zip(Includes((), (), (), ()), *several, strict=True)
    return Includes(*(tuple(dict.fromkeys(itertools.chain(*texts))) for texts in parts))
