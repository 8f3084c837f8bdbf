"""Check names and prose against words that are not used here: python ci/words.py

Three checks: identifiers of Python and C++, the first words of docstrings, and comments, docstrings and
documentation. CONTRIBUTING.md says what to write instead; `ci/words.toml` lists the exceptions by file,
mostly names of stored fields.
"""

from __future__ import annotations

import ast
import functools
import io
import re
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Refused as a name or as a part of one, between underscores or capitals.
WORDS = re.compile(
    r"found|asked|told|kept|said|heard|seen|held|mine|gone|besides?|apart|alike|who(?:se|m)?|hears?|dealt?"
    r"|(?:no|some|every|any)body|(?:ask|say|tell)(?:s|ing)?",
    re.IGNORECASE,
)
# Names of Python and CUDA, and terms of statistics. Names of tests are sentences.
USUAL = re.compile(r"test_\w+|\w*NotFound(?:Error)?|not_found|_?held_out\w*")
PROSE = re.compile(
    r"\b(?:nobody|somebody|whoever|everybody|whom|beside|alike|gone|heard|told|mended|for want of)\b"
    r"|\b(?:comes to|dealt|hears?|tells?|lets go|takes up with|as (?:\S+ ){1,5}ha(?:s|ve) (?:it|them))\b",
    re.IGNORECASE,
)
OPENINGS = (
    *("Of ", "What ", "As ", "Who ", "Whose ", "Where ", "Those ", "How ", "With ", "From ", "By "),
    "The same ",
)
CPP = (".cpp", ".hpp", ".h", ".cu", ".cuh")
SCRIPTS = (".sh", "Makefile", "Containerfile")
PRODUCT = ("laminabench/", "engine/", "baselines/", "csrc/", "tools/", "ci/")
DOCS = ("docs/", "README.md", "CONTRIBUTING.md", "SECURITY.md")
GENERATED = ("docs/errors.md", "docs/changelog.md")

Hits = Iterator[tuple[int, str]]


@functools.cache
def refused(name: str) -> bool:
    """Return whether a part of an identifier is refused."""
    parts = re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name)
    return any(map(WORDS.fullmatch, parts)) and not USUAL.fullmatch(name)


def python_names(source: str) -> Hits:
    """Yield the line and the text of each refused identifier."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NAME and refused(token.string):
            yield token.start[0], token.string


def cpp_names(source: str) -> Hits:
    """Yield the line and the text of each refused identifier outside of comments and strings."""
    code = re.sub(r'R"\(.*?\)"', lambda raw: "\n" * raw[0].count("\n"), source, flags=re.DOTALL)
    code = re.sub(r'"(?:\\.|[^"\\\n])*"|//.*', "", code)
    for line, text in enumerate(code.split("\n"), 1):
        yield from ((line, name) for name in re.findall(r"[A-Za-z_]\w*", text) if refused(name))


def docstrings(source: str) -> Hits:
    """Yield the line and the text of each docstring."""
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    for node in (node for node in ast.walk(ast.parse(source)) if isinstance(node, documented)):
        if text := ast.get_docstring(node):
            yield getattr(node, "lineno", 1), text


def prose(name: str, source: str) -> Hits:
    """Yield the line and the text of comments and docstrings, or of a page without its code blocks."""
    if name.endswith(".py"):
        yield from docstrings(source)
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string
        return
    fenced = False
    for line, text in enumerate(source.split("\n"), 1):
        fenced ^= text.lstrip().startswith("```")
        if name.endswith(".md"):
            yield line, "" if fenced else text
        else:
            _, sign, comment = text.partition("//" if name.endswith(CPP) else "#")
            yield line, comment if sign else ""


def problems(name: str, source: str) -> Iterator[tuple[int, str, str]]:
    """Yield line, word and advice for each refused word of a file."""
    python, product = name.endswith(".py"), name.startswith(PRODUCT)
    if python or name.endswith(CPP):
        for line, word in python_names(source) if python else cpp_names(source):
            yield line, word, "use a noun of the field"
    if python and product:
        for line, text in docstrings(source):
            if text.startswith(OPENINGS):
                yield line, text.split()[0], "begin the docstring with a verb or a noun"
    if (product and name.endswith((".py", *CPP, *SCRIPTS))) or name.startswith((*DOCS, *SCRIPTS)):
        for line, text in prose(name, source) if PROSE.search(source) else ():
            for match in PROSE.finditer(text):
                yield line, match[0], "write it as vLLM's or PyTorch's documentation would"


def main() -> int:
    """Print what is wrong; the exit status is 1 if anything is."""
    allowed = tomllib.loads((ROOT / "ci" / "words.toml").read_text())
    listed = subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines()
    wrong = []
    for name in listed:
        if name.endswith((".py", ".md", *CPP, *SCRIPTS)) and name not in (*GENERATED, "ci/words.py"):
            source = (ROOT / name).read_text(encoding="utf-8")
            for line, word, advice in problems(name, source):
                if word.lower() not in allowed.get(name, ()):
                    wrong.append(f"words: {name}:{line}: '{word}': {advice}")
    print(*wrong, sep="\n", end="\n" if wrong else "", file=sys.stderr)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
