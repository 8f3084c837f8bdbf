"""Find waits without a deadline: in the engine, the suite and baselines none is written.

    python ci/waits.py [FILES]

Recognised by how a call is written: a wait, join, get, recv, result, communicate, acquire, accept or poll
without a time, and the like of subprocess and concurrent.futures. `select` is refused altogether: it ends at
descriptor 1,024. Where no limit is correct (a worker that waits for work), or it is set elsewhere (a
socket's), the line says so: `# waits: WHY`. Receivers of channels have their time since they were opened.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("laminabench", "engine", "baselines")
# Methods that take nothing but a time.
METHODS = {"wait", "join", "get", "recv", "result", "communicate", "acquire", "accept", "poll"}
# Of `poll` only select's waits; a process's or a pipe's returns at once.
POLLING = "select"
FUNCTIONS = {"wait": 2, "as_completed": 2, "wait_for": 2}  # with so many arguments there is a time
PROGRAMS = {"run", "call", "check_call", "check_output"}
TIMES = {"timeout", "timeout_s"}
RECEIVER = re.compile(r"receivers?\b")
REASON = re.compile(r"#.*\bwaits: \S")


def sleeps(text: str) -> Iterator[tuple[int, str]]:
    """Yield each wait that may never end: its line, and how it is written."""
    tree, lines = ast.parse(text), text.splitlines()
    polls = any(isinstance(node, ast.Attribute) and _is(node.value, POLLING) for node in ast.walk(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _endless(node, polls=polls):
            written = lines[node.lineno - 1 : node.end_lineno]
            if not any(map(REASON.search, written)):
                yield node.lineno, ast.unparse(node.func)


def _endless(call: ast.Call, *, polls: bool) -> bool:
    function = call.func
    timed = any(each.arg in (*TIMES, None) and not _none(each.value) for each in call.keywords)
    if isinstance(function, ast.Name):
        return function.id in FUNCTIONS and len(call.args) < FUNCTIONS[function.id] and not timed
    if not isinstance(function, ast.Attribute):
        return False
    name, owner = function.attr, function.value
    if _is(owner, "subprocess"):
        return name in PROGRAMS and not timed
    if _is(owner, POLLING):
        return name == "select"
    if _is(owner, "futures"):
        return name in FUNCTIONS and len(call.args) < FUNCTIONS[name] and not timed
    if _is(owner, "asyncio"):
        return False  # tasks, each of whose waits is looked at by itself
    if name not in METHODS or timed or (name == "poll" and not polls):
        return False
    if any(each.arg == "blocking" for each in call.keywords):
        return False
    if name == "recv" and RECEIVER.search(ast.unparse(owner)):
        return False
    return not call.args or all(map(_none, call.args))


def _is(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def main(arguments: list[str]) -> int:
    files = [Path(name) for name in arguments]
    files = files or sorted(path for folder in SOURCES for path in (ROOT / folder).rglob("*.py"))
    wrong = 0
    for path in files:
        name = str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)
        for line, what in sleeps(path.read_text(encoding="utf-8")):
            print(
                f"waits: {name}:{line}: {what}() may never end: give it a time, or say why not: # waits: ..."
            )
            wrong += 1
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
