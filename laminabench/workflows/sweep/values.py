"""Values of --vary: a flag, and the values that it takes one after the other."""

from __future__ import annotations

import re
from dataclasses import dataclass

from laminabench.util.errors import UserError

# More would take hours to look at, let alone to replay: a range with a digit too many.
MOST_VALUES = 10_000

_RANGE = re.compile(r"(\d+)\.\.(\d+)(?::(\d+))?")
# A value ends at a comma, unless that is quoted or escaped.
_PIECE = re.compile(r"""(?:[^,\\"']|\\.|"[^"]*"|'[^']*')*""")
_QUOTED = re.compile(r"""\\(.)|"([^"]*)"|'([^']*)'""")


@dataclass(frozen=True, slots=True)
class Varied:
    """One --vary: a name, its values as text, and its original words."""

    name: str
    values: tuple[str, ...]
    text: str


def parse_vary(text: str) -> Varied:
    """Read `batches=1,2,3`, `attention-workers=2..8`, `seed=0..16:2` or `network=fhbn,"40us,42GB/s"`."""
    name, equals, listed = text.partition("=")
    name = name.strip().lstrip("-")
    if not (name and equals and listed.strip()):
        raise UserError(
            "sweep-vary-value",
            f"--vary {text!r}: write FLAG=VALUES, such as batches=1,2,3 or attention-workers=2..8",
        )
    values = [value for piece in _pieces(listed, text) for value in _values(piece, text)]
    if len(values) > MOST_VALUES:
        raise _too_many(text)
    return Varied(name, tuple(values), text)


def _pieces(listed: str, text: str) -> list[str]:
    """Split at the commas that are neither quoted nor escaped."""
    pieces, at = [], 0
    while True:
        match = _PIECE.match(listed, at)
        assert match is not None  # it can be empty
        piece, at = match[0].strip(), match.end()
        if at < len(listed) and listed[at] != ",":
            raise UserError(
                "sweep-vary-value",
                f"--vary {text!r}: the quotation that begins with {listed[at]} does not end",
            )
        if not piece:
            raise UserError(
                "sweep-vary-value", f"--vary {text!r}: a value is missing between two commas, or at an end"
            )
        pieces.append(piece)
        if at == len(listed):
            return pieces
        at += 1


def _values(piece: str, text: str) -> list[str]:
    """Return the numbers of a range, or the one value without its quotation marks."""
    match = _RANGE.fullmatch(piece)
    if match is None:
        return [_QUOTED.sub(lambda quoted: "".join(filter(None, quoted.groups())), piece)]
    first, last, step = int(match[1]), int(match[2]), int(match[3] or 1)
    if first > last or step == 0:
        raise UserError(
            "sweep-vary-value",
            f"--vary {text!r}: {piece} is no range; write FIRST..LAST or FIRST..LAST:STEP, upwards",
        )
    if (last - first) // step >= MOST_VALUES:
        raise _too_many(text)
    return [str(value) for value in range(first, last + 1, step)]


def _too_many(text: str) -> UserError:
    return UserError(
        "sweep-too-large", f"--vary {text!r} has more than {MOST_VALUES:,} values; take larger steps"
    )
