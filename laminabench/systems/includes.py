"""The contents of a modelled answer in one line: prompts, kernels, assumptions and the known error."""

from __future__ import annotations

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
        parts = (", ".join(self.prompts), ", ".join(self.kernels), assumed, f"error: {'; '.join(self.error)}")
        return f"{INCLUDES}{'; '.join(filter(None, parts))}"

    def describe(self) -> dict[str, Json]:
        return {name: list(texts) for name, texts in self._asdict().items()}


def together(several: Iterable[Includes]) -> Includes:
    """Return what several answers include, each text once."""
    texts = (dict.fromkeys(text for part in parts for text in part) for parts in zip(*several, strict=True))
    return Includes(*map(tuple, texts))
