"""Make docs/errors.md from the places that raise errors: code, class, exit code, sentences and files.

    python ci/errors.py           writes it
    python ci/errors.py --check   fails if it is not what would be written, or if an error has no code

The sources are read and never imported. A code is a string literal: an argument of the error's class, or of a
helper that hands it on to the class; or it stands in a table named CODES, of classes that have one code each.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("laminabench", "engine", "baselines")
PAGE = ROOT / "docs" / "errors.md"
BASE = "CodedError"
EXITS = {"CheckFailedError": 1}  # and all others with 2
END = "End"  # how a command ends, and its code where the error has none: `End(exit code, sentence, code)`
END_EXITS = {"CHECK_FAILED": 1, "WRONG_USE": 2, "BUG": 70, "INTERRUPTED": 130, "TERMINATED": 143}
CODE = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
HEAD = """# Errors

A failing command prints one sentence: what is wrong, where, and what to do. Each has a code that stays when
the sentence is improved: `-v` shows it, `--json` prints `{"error": {"code", "message"}}`, and in Python it is
the exception's `code`. Exit code 1 is a failed check, 2 invalid use or input, 70 a bug in laminabench. Errors
of `lamina` end a command with 2, too.

`ci/errors.py` generates this page from the sources; `make lint` compares it. {braces} stand for values.

"""


@dataclass
class Entry:
    """Documentation of one error code."""

    classes: set[str] = field(default_factory=set)
    sentences: list[str] = field(default_factory=list)
    files: set[str] = field(default_factory=set)
    exits: set[int] = field(default_factory=set)


@dataclass(frozen=True)
class Module:
    path: str
    tree: ast.Module

    def functions(self) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield node

    def calls(self, node: ast.AST | None = None) -> Iterator[ast.Call]:
        for child in ast.walk(node or self.tree):
            if isinstance(child, ast.Call):
                yield child


class Sites:
    """All errors of the sources."""

    def __init__(self, modules: list[Module]) -> None:
        self.modules = modules
        self.entries: dict[str, Entry] = defaultdict(Entry)
        self.uncoded: list[str] = []
        self._bases = {
            node.name: [last_name(base) for base in node.bases]
            for module in modules
            for node in ast.walk(module.tree)
            if isinstance(node, ast.ClassDef)
        }
        self._own_code = {
            node.name
            for module in modules
            for node in ast.walk(module.tree)
            if isinstance(node, ast.ClassDef)
            and any(is_super_init(call) and literals(call.args[:1]) for call in module.calls(node))
        }
        for module in modules:
            self._read(module)

    def _coded(self, name: str) -> bool:
        return name == BASE or any(self._coded(base) for base in self._bases.get(name, ()) if base != name)

    def _read(self, module: Module) -> None:
        owners = {
            id(call): node.name
            for node in ast.walk(module.tree)
            if isinstance(node, ast.ClassDef)
            for call in module.calls(node)
            if is_super_init(call)
        }
        parameters: dict[int, tuple[str, list[str]]] = {}  # of the innermost function around a call
        for function in module.functions():
            names = [argument.arg for argument in (*function.args.args, *function.args.kwonlyargs)]
            for call in module.calls(function):
                parameters[id(call)] = (function.name, names)
        for call in module.calls():
            name = owners.get(id(call)) or last_name(call.func)
            if name == END and len(call.args) == 3:
                for code in literals(call.args[2:]):
                    entry = self._note(code, "", module.path, call.args[1])
                    entry.exits.add(END_EXITS[last_name(call.args[0])])
            elif self._coded(name) and (call.args or call.keywords):
                self._read_call(module, name, call, parameters.get(id(call)))
        for node in module.tree.body:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            if any(isinstance(target, ast.Name) and target.id == "CODES" for target in targets):
                self._read_table(module, getattr(node, "value", None))

    def _read_call(
        self, module: Module, name: str, call: ast.Call, function: tuple[str, list[str]] | None
    ) -> None:
        """`Error("code", sentence)`, or a helper's `Error(code, sentence)`, whose callers give the code."""
        if is_super_init(call) and not literals(call.args[:1]):
            return
        for at, argument in enumerate(call.args[:-1]):
            if codes := literals([argument]):
                for code in codes:
                    self._note(code, name, module.path, call.args[at + 1])
                return
        given = call.args[-2] if len(call.args) > 1 else None
        if isinstance(given, ast.Attribute):  # another error's code, with more details of the place
            return
        if isinstance(given, ast.Name) and function and given.id in function[1]:
            sentence = call.args[-1]
            for caller in module.calls():
                if last_name(caller.func) != function[0]:
                    continue
                given_there = bound(caller, function[1])
                text = given_there.get(sentence.id, sentence) if isinstance(sentence, ast.Name) else sentence
                for code in literals([given_there.get(given.id)]):
                    self._note(code, name, module.path, text)
            return
        if name not in self._own_code:
            self.uncoded.append(f"{module.path}:{call.lineno}")

    def _read_table(self, module: Module, table: ast.expr | None) -> None:
        if isinstance(table, ast.Dict):
            for kind, code in zip(table.keys, table.values, strict=True):
                for text in literals([code]):
                    self._note(text, last_name(kind), module.path, None)

    def _note(self, code: str, name: str, path: str, sentence: ast.expr | None) -> Entry:
        entry = self.entries[code]
        entry.files.add(path)
        if name:
            entry.classes.add(name)
            entry.exits.add(EXITS.get(name, 2))
        text = " ".join(template(sentence).split()) if sentence is not None else ""
        if text and text not in entry.sentences:
            entry.sentences.append(text)
        return entry

    def page(self) -> str:
        lines = ["| code | class | exit | message | where |", "|---|---|---|---|---|"]
        for code, entry in sorted(self.entries.items()):
            cells = (
                f"`{code}`",
                ", ".join(f"`{name}`" for name in sorted(entry.classes)),
                " or ".join(map(str, sorted(entry.exits))),
                "<br>".join(
                    sorted(text.replace("|", "\\|").replace("<", "&lt;") for text in entry.sentences)
                ),
                ", ".join(sorted(entry.files)),
            )
            lines.append("| " + " | ".join(cells) + " |")
        return HEAD + "\n".join(lines) + "\n"


def is_super_init(call: ast.Call) -> bool:
    function = call.func
    return (
        isinstance(function, ast.Attribute)
        and function.attr == "__init__"
        and isinstance(function.value, ast.Call)
        and last_name(function.value.func) == "super"
    )


def bound(call: ast.Call, names: list[str]) -> dict[str, ast.expr]:
    """Return a call's arguments by the names they have inside; a method's `self` is not among them."""
    names = names[1:] if names[:1] in (["self"], ["cls"]) else names
    return dict(zip(names, call.args, strict=False)) | {k.arg: k.value for k in call.keywords if k.arg}


def last_name(node: ast.expr | None) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def literals(nodes: list[ast.expr | None] | list[ast.expr]) -> list[str]:
    """Return the codes that an argument may be: a literal, or one of two."""
    texts = []
    for node in nodes:
        if isinstance(node, ast.IfExp):
            texts += literals([node.body, node.orelse])
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and CODE.fullmatch(node.value):
            texts.append(node.value)
    return texts


def template(node: ast.expr) -> str:
    """Return a sentence with {names} where something is filled in."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(template(part) for part in node.values)
    if isinstance(node, ast.FormattedValue):
        return template(node.value)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return template(node.left) + template(node.right)
    if isinstance(node, ast.IfExp):
        return f"{template(node.body)} / {template(node.orelse)}"
    return f"{{{short(node)}}}"


def short(node: ast.expr) -> str:
    """Return a word for what an expression gives."""
    if isinstance(node, ast.Name | ast.Attribute):
        return last_name(node)
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute) and isinstance(
            node.func.value, ast.Constant
        ):  # ", ".join(...)
            return short(node.args[0]) if node.args else "..."
        inside = [word for word in map(short, node.args) if word != "..."]
        return inside[0] if len(inside) == 1 else last_name(node.func).strip("_") or "..."
    if isinstance(node, ast.Subscript | ast.Starred):
        return short(node.value)
    return "..."


def read() -> Sites:
    files = sorted(path for folder in SOURCES for path in (ROOT / folder).rglob("*.py"))
    return Sites([Module(str(path.relative_to(ROOT)), ast.parse(path.read_text())) for path in files])


def main(arguments: list[str]) -> int:
    sites = read()
    page = sites.page()
    if arguments != ["--check"]:
        PAGE.write_text(page)
        print(f"errors: {len(sites.entries)} codes in {PAGE.relative_to(ROOT)}")
    for place in sites.uncoded:
        print(f"errors: {place}: an error without a code", file=sys.stderr)
    if arguments == ["--check"] and (not PAGE.exists() or PAGE.read_text() != page):
        print("errors: docs/errors.md is not what the sources say: python ci/errors.py", file=sys.stderr)
        return 1
    return int(bool(sites.uncoded))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
