"""Runner of the blocks of a documentation page, in a folder of its own, as a reader would."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import doc_blocks
from doc_blocks import ROOT, Block, blocks, commands

SHELL = {"sh", "bash"}
DATA = {"toml", "json", "yaml"}
LIMIT_S = 300  # of one command
URL = "http://127.0.0.1:8000"  # where pages have a server
PRINTED = (
    "printed"  # the comment in front of what the commands before it print, and the next for measured numbers
)
PRINTED_SHAPE = "printed, numbers differ"
# Lines of modelled replays that say how long they took on this machine.
_TIMED = re.compile(r"simulated in|candidates in")
_NUMBER = re.compile(r"\d+(,\d{3})*(\.\d+)?(e-?\d+)?")
_DRIVER = "for block in blocks:\n    exec(block, names)\n"


@cache
def declared() -> dict[str, Any]:
    """Return tests/docs/declared.toml: the exceptions to simply running everything."""
    return tomllib.loads((ROOT / "tests" / "docs" / "declared.toml").read_text())


def entry(table: str, command: str) -> str | None:
    """Return a command's entry in this table: its longest prefix, or all of it, which ends with $."""
    entries = [each for each in declared()[table] if f"{command}$".startswith(each)]
    return max(entries, key=len) if entries else None


def kind(command: str) -> str:
    """Return a command's kind: quick, long, elsewhere or not-run; the longest prefix decides."""
    lengths = {table: len(entry(table, command) or "") for table in ("elsewhere", "not-run", "long")}
    best = max(lengths, key=lambda table: lengths[table])
    return best if lengths[best] else "quick"


def of_page(page: str, key: str, default: Any) -> Any:
    """Return what is declared for a page."""
    return declared()["pages"].get(page, {}).get(key, default)


def runs_python(page: str, *, long: bool) -> bool:
    """Return whether the page's Python is for this kind of run."""
    return long or not of_page(page, "python-long", default=False)


def is_long(page: str) -> bool:
    """Return whether a quick run leaves out anything of the page."""
    python = any(block.language == "python" and not block.note for block in blocks(page))
    return (python and not runs_python(page, long=False)) or any(
        kind(command) == "long"
        for block in blocks(page)
        if block.language in SHELL
        for command in commands(block)
    )


@dataclass
class PageRun:
    """One run of a page; `call` runs a command line of laminabench here: exit code, stdout and stderr."""

    page: str
    folder: Path
    call: Callable[[list[str]], tuple[int, str, str]]
    long: bool
    failures: list[str] = field(default_factory=list)
    changed: dict[tuple[int, int], str] = field(default_factory=dict)
    url: str = URL
    _printed: str = ""
    _left_out: bool = False  # the last command, so that there is nothing to compare

    def run(self) -> None:
        """Run everything in the page's order."""
        with contextlib.ExitStack() as servers:
            for command in of_page(self.page, "before", []):
                self._command(command, "before", servers)
            for command in of_page(self.page, "before-long", []) if self.long else []:
                self._command(command, "before", servers)
            python = []
            for block in blocks(self.page):
                if block.language in SHELL and not block.note.startswith("not run"):
                    self._printed, self._left_out = "", False
                    for command in commands(block):
                        self._left_out = kind(command) not in ("quick", *(["long"] if self.long else []))
                        if not self._left_out:
                            self._command(command, block.where, servers)
                elif block.language == "python" and not block.note:
                    python.append(block.text)
                elif block.note in (PRINTED, PRINTED_SHAPE) and not self._left_out:
                    self._compare(block)
            if python and runs_python(self.page, long=self.long):
                self._python(python)

    def _command(self, command: str, where: str, servers: contextlib.ExitStack) -> None:
        """Run one command; its stdout is stored."""
        command = self._meant(command).replace(".venv/bin/laminabench", "laminabench")
        if command.startswith("laminabench serve"):
            servers.close()
            anywhere = re.sub(r" --port \d+|$", " --port 0", command, count=1)
            self.url = servers.enter_context(self._served(anywhere))
            return
        if command.startswith("laminabench view"):
            with self._served(f"{command} --no-open"):
                return
        try:
            words = shlex.split(command)
        except ValueError as error:
            self.failures.append(f"{where}: {command}: {error}")
            return
        if words[0] == "laminabench" and not set(command) & set("|><$*&;"):
            code, out, err = self.call(words[1:])
        else:
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", command],
                check=False,
                cwd=self.folder,
                capture_output=True,
                text=True,
                timeout=LIMIT_S,
            )
            code, out, err = done.returncode, done.stdout, done.stderr
        self._printed += out
        if code != of_page(self.page, "exits", {}).get(command, 0):
            self.failures.append(f"{where}: exit code {code} of {command}\n{err[-2000:]}")

    def _meant(self, text: str) -> str:
        """Return the text with a reader's values in place of placeholders."""
        for placeholder, value in of_page(self.page, "replace", {}).items():
            text = text.replace(placeholder, value)
        return text.replace(URL, self.url)

    @contextlib.contextmanager
    def _served(self, command: str) -> Iterator[str]:
        """Run a server during the block, on a port of the system's choice; yield its URL."""
        words = shlex.split(command)[1:]
        server = subprocess.Popen(
            [sys.executable, "-m", "laminabench", *words, "--json"],
            cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            assert server.stdout
            assert server.stderr
            line = server.stdout.readline()
            if '"url"' not in line:  # not one object on one line: an error
                self.failures.append(f"{command}: {server.stderr.read()[-2000:]}")
                yield URL
                return
            yield str(json.loads(line)["url"])
        finally:
            server.terminate()
            server.communicate(timeout=60)

    def _python(self, texts: list[str]) -> None:
        """Run the page's Python in a separate process: one by one, unless the page's driver differs."""
        driver = of_page(self.page, "python", _DRIVER)
        texts = [self._meant(text) for text in texts]
        program = self.folder / "page.py"
        # Workers are started by modules: a guard, as in any program that starts processes.
        program.write_text(f"blocks = {texts!r}\nnames = {{'__name__': '__main__'}}\n{driver}")
        done = subprocess.run(
            [sys.executable, program],
            cwd=self.folder,
            check=False,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
        if done.returncode:
            self.failures.append(f"{self.page}: its Python\n{done.stderr[-3000:]}")

    def _compare(self, block: Block) -> None:
        """Compare what is shown with what was printed; a line of three dots matches any lines."""
        if agree(block.text, self._printed, shape=block.note == PRINTED_SHAPE):
            return
        self.changed[block.span] = (
            "\n".join(line.rstrip() for line in self._printed.strip("\n").splitlines()) + "\n"
        )
        self.failures.append(f"{block.where}: is not what is printed now, which is\n{self._printed}")


def _lines(text: str, *, shape: bool) -> list[str]:
    """Return lines for comparing, without numbers that may differ and the spaces that align them."""
    lines = []
    for line in text.strip("\n").splitlines():
        free = shape or _TIMED.search(line)
        lines.append(" ".join((_NUMBER.sub("#", line) if free else line).split()))
    return lines


def agree(shown: str, printed: str, *, shape: bool) -> bool:
    """Return whether this is what is printed, by lines; with `shape`, numbers may differ."""
    return _agree(_lines(shown, shape=shape), _lines(printed, shape=shape))


def _agree(shown: list[str], printed: list[str]) -> bool:
    if not shown:
        return not printed
    if shown[0] == "...":
        return any(_agree(shown[1:], printed[start:]) for start in range(len(printed) + 1))
    return bool(printed) and shown[0] == printed[0] and _agree(shown[1:], printed[1:])


def rewrite(run: PageRun) -> None:
    """Write what is printed now into the page (LAMINABENCH_DOCS_UPDATE=1), where it is shown completely."""
    path = ROOT / run.page
    source = path.read_text()
    for (start, end), text in sorted(run.changed.items(), reverse=True):
        source = source[:start] + text + source[end:]
    path.write_text(source)


def environment(home: Path) -> dict[str, str]:
    """Return a reader's environment without a network: traces come from their profiles."""
    nowhere = "http://127.0.0.1:9"
    return {
        "LAMINABENCH_HOME": str(home),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "http_proxy": nowhere, "https_proxy": nowhere, "no_proxy": "127.0.0.1,localhost",
    }  # fmt: skip


def all_commands() -> list[tuple[Block, str]]:
    """Return every command of every page."""
    return [
        (block, command)
        for page in doc_blocks.pages()
        for block in blocks(page)
        if block.language in SHELL
        for command in commands(block)
    ]
