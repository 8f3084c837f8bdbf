"""The contents of a modelled answer in a few lines: prompts, kernels, assumptions and the known error."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import NamedTuple

from laminabench.util.json import Json

INCLUDES, ERROR, UNMEASURED = "Includes: ", "Known error: ", "Not measured: any load on "


class Includes(NamedTuple):
    """The contents of modelled numbers, a few words each."""

    prompts: tuple[str, ...]
    kernels: tuple[str, ...]
    assumed: tuple[str, ...]
    error: tuple[str, ...]
    unmeasured: tuple[str, ...] = ()  # devices

    @property
    def lines(self) -> tuple[str, ...]:
        assumed = f"assumed: {', '.join(self.assumed)}" if self.assumed else ""
        parts = [*filter(None, (", ".join(self.prompts), ", ".join(self.kernels), assumed))]
        contents = [f"{INCLUDES}{'; '.join(parts)}"] if parts else []
        errors = (f"{ERROR}{each}" for each in self.error)
        without = [f"{UNMEASURED}{' or '.join(self.unmeasured)}"] if self.unmeasured else []
        return (*contents, *errors, *without)

    def __str__(self) -> str:
        return "\n".join(self.lines)

    def describe(self) -> dict[str, Json]:
        return {name: list(texts) for name, texts in self._asdict().items()}


def together(several: Iterable[Includes]) -> Includes:
    """Return what several answers include, each text once."""
    parts = zip(Includes((), (), (), ()), *several, strict=True)
    return Includes(*(tuple(dict.fromkeys(itertools.chain(*texts))) for texts in parts))
