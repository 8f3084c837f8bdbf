"""Which engines and sizes a ping-pong is asked for, as the command line has them."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from lamina.fhbn import engines
from lamina.fhbn.engines import engine, usable
from lamina.fhbn.errors import HandshakeError
from lamina.fhbn.place import Place
from laminabench.errors import UserError

# To compare with, and no engine of workers: it moves device memory only.
engines.add("nccl", "laminabench.bench.fhbn.nccl")

LARGEST = 1 << 30
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True)
class Engines:
    """What is measured, and what is not and why; `auto` is what that word has come to, if it was given.

    Where they were `named` on the command line, each must open its channels.
    """

    names: tuple[str, ...]
    skipped: dict[str, str]
    auto: str | None
    named: bool = True

    def without(self, name: str, reason: str) -> Engines:
        """The others."""
        names = tuple(other for other in self.names if other != name)
        return replace(self, names=names, skipped={**self.skipped, name: reason})


def engines_of(text: str, *, named: bool = True) -> Engines:
    """Of a list such as "shm,gloo"; those that cannot be used here are skipped, unless none is left."""
    here = Place.here()
    asked = _words(text)
    auto = None
    if "auto" in asked:
        try:
            auto = usable("auto", here, here)[0]
        except HandshakeError as error:
            raise UserError("fhbn-engines-unusable", f"--engines '{text}': {error}") from error
        asked = [auto if word == "auto" else word for word in asked]
    reasons = {name: engine(name).missing(here, here) for name in asked}
    names = tuple(name for name, reason in reasons.items() if reason is None)
    skipped = {name: reason for name, reason in reasons.items() if reason is not None}
    if not names:
        raise _none_left(text, skipped)
    return Engines(names, skipped, auto, named)


def device_engines_of(text: str) -> Engines:
    """Of a list such as "shm,softnic": those whose ends can be operations on a GPU's stream here."""
    here = Place.here()
    names: dict[str, None] = {}
    skipped = {}
    for word in _words(text):
        try:
            names[usable(word, here, here, on_stream=True)[0]] = None
        except HandshakeError as error:
            skipped[word] = str(error).removeprefix(f"{word} cannot be used because ")
    if not names:
        raise _none_left(text, skipped)
    return Engines(tuple(names), skipped, None)


def _none_left(text: str, skipped: dict[str, str]) -> UserError:
    why = "; ".join(f"{name} cannot be used because {reason}" for name, reason in skipped.items())
    return UserError("fhbn-engines-unusable", f"--engines '{text}': {why}")


def _words(text: str) -> list[str]:
    asked = [word.strip() for word in text.split(",")]
    for word in asked:
        if word not in engines.names():
            raise UserError(
                "fhbn-engine-unknown",
                f"--engines '{text}': there is no '{word}', give some of {', '.join(engines.names())}",
            )
    return asked


def sizes_of(text: str) -> list[int]:
    """Bytes, in order: FIRST:LAST goes up by four, and ends with LAST."""
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
