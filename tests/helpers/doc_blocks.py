"""The fenced blocks of a Markdown page, and the commands of a block."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_FENCE = re.compile(
    r"^(?P<fence>```+)(?P<language>[\w-]*)[^\n]*\n(?P<text>.*?)^(?P=fence)[ \t]*$", re.M | re.S
)
_NOTE = re.compile(r"<!--\s*(?P<note>(?:(?!-->).)*?)\s*-->\s*\Z", re.S)


@dataclass(frozen=True)
class Block:
    """One fenced block: where it is, what it is in, and the invisible comment in front of it."""

    page: str
    line: int
    language: str
    text: str
    note: str
    span: tuple[int, int]  # of its text in the page

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[str]:
    """Return every page whose blocks are checked, as paths in the tree."""
    paths = ["README.md", "CONTRIBUTING.md", *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
    return sorted(paths)


def blocks(page: str) -> list[Block]:
    """Return the blocks of a page, in order."""
    source = (ROOT / page).read_text()
    result = []
    for match in _FENCE.finditer(source):
        note = _NOTE.search(source[: match.start()])
        result.append(
            Block(
                page,
                source.count("\n", 0, match.start()) + 1,
                match["language"],
                match["text"],
                note["note"] if note else "",
                match.span("text"),
            )
        )
    return result


def commands(block: Block) -> list[str]:
    """Return the command lines of a shell block, each in one piece and without its comment."""
    joined = re.sub(r"\\\n\s*", "", block.text)
    lines = (re.sub(r"(^|\s)#\s.*$", "", line).strip() for line in joined.splitlines())
    return [line for line in lines if line]
