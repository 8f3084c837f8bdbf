"""The program of a virtual machine until its power is cut: it writes journals and Runs and prints each step.

It needs only what the machine has: a Run's files are given, and written as any Run's are.
"""

from __future__ import annotations

import itertools
import sys
import time
from pathlib import Path
from typing import Any

from laminabench.runs.journal import Journal, journal_path
from laminabench.runs.replace import replacing_directory

HEADER = {"what": "a journal"}
RECORDS = 150
_EVERY_S = 0.01


def record(number: int) -> list[Any]:
    """Return a record like that of an iteration: most are short, some have many tokens."""
    return ["Iteration", number, [number] * (number * 7 % 300)]


def main() -> None:
    """Run `python -m experiments.vm_writer FOLDER FILES` until it is killed."""
    folder, files = map(Path, sys.argv[1:])
    contents = {path.name: path.read_bytes() for path in files.iterdir()}
    for turn in itertools.count():
        run = folder / f"run-{turn}"
        journal = Journal.create(journal_path(run), HEADER)
        print("begun", turn, flush=True)
        for number in range(RECORDS):
            journal.append(record(number))
            journal.flush()
            print("flushed", turn, number, flush=True)
            time.sleep(_EVERY_S)
        with replacing_directory(run) as partial:
            for name, content in contents.items():
                (partial / name).write_bytes(content)
        print("whole", turn, flush=True)
        journal.remove()
        print("gone", turn, flush=True)


if __name__ == "__main__":
    main()
