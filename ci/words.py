"""Check identifiers and docstring openings against words that are not used here: python ci/words.py

CONTRIBUTING.md says what to write instead. `ci/words.toml` lists exceptions, mostly names of stored fields,
and how many docstrings may still open with a fragment.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("laminabench", "engine/lamina", "baselines")
WORDS = frozenset(
    (
        "found",
        "asked",
        "told",
        "kept",
        "said",
        "heard",
        "seen",
        "held",
        "mine",
        "gone",
        "beside",
        "apart",
        "alike",
    )
)
OPENINGS = (
    "Of ",
    "What ",
    "As ",
    "Who ",
    "Whose ",
    "Where ",
    "Those ",
    "How ",
    "With ",
    "From ",
    "By ",
    "The same ",
)


def identifiers(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the word of each identifier that is in WORDS."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NAME and token.string in WORDS:
            yield token.start[0], token.string


def fragments(source: str) -> Iterator[int]:
    """Yield the line of each definition whose docstring opens with a fragment."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text and text.startswith(OPENINGS):
                yield getattr(node, "lineno", 1)


def main() -> int:
    """Print what is wrong; the exit status is 1 if anything is."""
    exceptions = tomllib.loads((ROOT / "ci" / "words.toml").read_text())
    wrong, opened = [], []
    for path in (path for top in SOURCES for path in sorted((ROOT / top).rglob("*.py"))):
        name, source = str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
        allowed = exceptions["identifiers"].get(name, [])
        wrong += [
            f"{name}:{line}: '{word}': use a noun of the field"
            for line, word in identifiers(source)
            if word not in allowed
        ]
        opened += [f"{name}:{line}: the docstring opens with a fragment" for line in fragments(source)]
    if len(opened) > exceptions["fragments"]:
        wrong += [*opened, f"{len(opened)} docstrings open with a fragment, {exceptions['fragments']} may"]
    print(*(f"words: {sentence}" for sentence in wrong), sep="\n", end="\n" if wrong else "", file=sys.stderr)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
