"""Parsing of a ping-pong's engines and sizes from the command line."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from lamina.fhbn import engines
from lamina.fhbn.control import Place
from lamina.fhbn.engines import because, find
from lamina.fhbn.errors import HandshakeError
from laminabench.util.errors import UserError

# For comparison only, not for workers: it moves device memory only.
engines.add("nccl", "laminabench.bench.fhbn.nccl")

LARGEST = 1 << 30
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True)
class Engines:
    """The engines to measure, those skipped and why; `auto` is the engine that this word was resolved to.

    If they were `named` on the command line, each must open its channels.
    """

    names: tuple[str, ...]
    skipped: dict[str, str]
    auto: str | None
    named: bool = True

    def without(self, name: str, reason: str) -> Engines:
        names = tuple(other for other in self.names if other != name)
        return replace(self, names=names, skipped={**self.skipped, name: reason})


def engines_of(text: str, *, named: bool = True, on_stream: bool = False) -> Engines:
    """Parse a list such as "shm,gloo"; engines that cannot be used here are skipped, unless none is left.

    `on_stream`: only engines whose ends can be operations on a GPU's stream.
    """
    here = Place.here()
    names: dict[str, None] = {}
    skipped: dict[str, str] = {}
    auto = None
    for word in (word.strip() for word in text.split(",")):
        if word not in engines.names():
            known = ", ".join(engines.names())
            raise UserError(
                "fhbn-engine-unknown", f"--engines '{text}': there is no '{word}', give some of {known}"
            )
        try:
            name = find(word, here, here, on_stream=on_stream).usable[0]
        except HandshakeError as error:
            skipped[word] = str(error).removeprefix(f"{word} cannot be used because ")
            continue
        names[name] = None
        auto = name if word == "auto" else auto
    if not names:
        raise UserError("fhbn-engines-unusable", f"--engines '{text}': {because(skipped)}")
    return Engines(tuple(names), skipped, auto, named)


def sizes_of(text: str) -> list[int]:
    """Return sizes in bytes, in order: FIRST:LAST goes up by four, and ends with LAST."""
    first, colon, last = text.partition(":")
    if not colon:
        return sorted({_size(word, text) for word in text.split(",")})
    size, end = _size(first, text), _size(last, text)
    if size > end:
        raise UserError("fhbn-sizes", f"--sizes '{text}': {first} is more than {last}")
    sizes = []
    while size < end:
        sizes.append(size)
        size *= 4
    return [*sizes, end]


def _size(word: str, text: str) -> int:
    match = re.fullmatch(r"(\d{1,12})(?:([KMG])i?)?B?", word.strip(), re.ASCII | re.IGNORECASE)
    if match is None:
        raise UserError("fhbn-sizes", f"--sizes '{text}': give FIRST:LAST or a list such as 64,4K,1M")
    size = int(match[1]) * (_UNITS[match[2].upper()] if match[2] else 1)
    if not 1 <= size <= LARGEST:
        raise UserError("fhbn-sizes", f"--sizes '{text}': a message here has 1 byte to 1G")
    return size
