"""Damaged and failing files: flipped bits, garbage of every format, failing writes, power cuts."""

from __future__ import annotations

import os
import random
import resource
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

from experiments import corpus
from experiments.disk import in_child, memory
from experiments.scenarios import HEADER, RECORDS, facts, write_a_run
from experiments.tally import Tally
from laminabench.catalog.fitting import terms
from laminabench.runs.journal import Journal
from laminabench.runs.read import read_run
from laminabench.util.errors import UserError

# Limits: processor time for one file, and memory of all together beyond the first.
LONGEST_S = 5.0
MOST_BYTES = 512 << 20
# Arrow 26 leaks its buffer when a compressed file is damaged.
ARROW_BYTES = 100_000
# Fits of damaged measurements search to the end in one of so many cases, and briefly in the others.
WHOLE_FITS = 8


def failing_writes(seeds: Sequence[int]) -> Tally:
    """Fail the n-th operation on the disk, for all n; a case is a scene and an error."""
    return in_child("disk_faults:failing_writes", seeds)


def power_cuts(seeds: Sequence[int]) -> Tally:
    """Cut the power while a replay is journalled and its Run written."""
    return in_child("disk_faults:power_cuts", seeds)


def flipped_bits(seeds: Sequence[int]) -> Tally:
    """Flip one bit of a Run's files or of a journal: it must be reported, or change nothing."""
    tally = Tally("flipped-bits")
    with memory() as folder:
        write_a_run(folder / "run")
        was = facts(read_run(folder / "run"))
        _journal(folder / "one.journal")
        files = [*sorted((folder / "run").iterdir()), folder / "one.journal"]
        for number in seeds:
            drawn = random.Random(number)
            path = drawn.choice(files)
            content = path.read_bytes()
            place = drawn.randrange(8 * len(content))
            with _flipped(path, content, place):
                if path.suffix == ".journal":
                    kind, what = _journal_after(path)
                else:
                    kind, what = _run_after(folder / "run", was)
            tally.add(kind, f"bit {place} of {path.name}", number, what)
    return tally


def fuzzed_files(seeds: Sequence[int], names: tuple[str, ...] = ()) -> Tally:
    """Mutate files of every kind that is read: they must be read, or end in one error sentence."""
    tally = Tally("fuzzed-files")
    with memory() as folder, warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)  # a number that is none goes into results
        samples = corpus.samples(folder)
        contents = [sample.content for sample in samples.values()]
        chosen = [name for name in samples if not names or name in names]
        open_before = peak_before = unpacked = 0
        for turn, number in enumerate(seeds):
            drawn = random.Random(number)
            name = drawn.choice(chosen)
            sample = samples[name]
            sample.path.write_bytes(corpus.changed(sample.content, drawn, contents))
            kind, what, began = None, "", time.process_time()
            try:
                brief = {"rounds": 1, "steps": 30} if number % WHOLE_FITS else {}
                with mock.patch.dict(terms.minimise.__kwdefaults__, brief):
                    sample.read(sample.path)
            except UserError as error:
                kind = "crashed" if "\n" in str(error) else None
                what = str(error)
                unpacked += name.endswith((" gz", " zst"))
            except Exception as error:
                kind, what = "crashed", repr(error)
            if (took := time.process_time() - began) > LONGEST_S:
                kind, what = "crashed", f"took {took:.1f} s"
            tally.add(kind, name, number, what)
            if turn == 1000:  # libraries have allocated what they need once
                open_before, peak_before = descriptors(), peak_bytes()
        tally.facts = {"peak_mb": peak_bytes() >> 20, "cpu_s": round(time.process_time(), 1)}
        grown = peak_bytes() - peak_before - ARROW_BYTES * unpacked
        if peak_before and grown > MOST_BYTES:
            tally.add("leaked", "all", seeds[0], f"{grown:,} bytes")
        if open_before and (more := descriptors() - open_before) > 0:
            tally.add("leaked", "all", seeds[0], f"{more} descriptors")
    return tally


def _journal(path: Path) -> None:
    journal = Journal.create(path, HEADER)
    for record in RECORDS:
        journal.append(record)
    journal.flush()
    journal.close()


class _flipped:  # noqa: N801 - used as a statement
    """A context in which one bit of a file is flipped."""

    def __init__(self, path: Path, content: bytes, place: int) -> None:
        self._path, self._content, self._place = path, content, place

    def __enter__(self) -> None:
        damaged = bytearray(self._content)
        damaged[self._place // 8] ^= 1 << self._place % 8
        self._path.write_bytes(damaged)

    def __exit__(self, *_: object) -> None:
        self._path.write_bytes(self._content)


def _run_after(directory: Path, was: bytes) -> tuple[str | None, str]:
    try:
        read = facts(read_run(directory))
    except UserError:
        return None, ""
    except Exception as error:
        return "crashed", repr(error)
    return (None, "") if read == was else ("wrong", "a Run that was never written")


def _journal_after(path: Path) -> tuple[str | None, str]:
    """Check that records before the damage are read, the loss is reported, and the file is copied."""
    damaged = path.read_bytes()
    try:
        journal, records = Journal.reopen(path)
    except UserError:
        # Its beginning is damaged: nothing may be changed.
        return (None, "") if path.read_bytes() == damaged else ("lost", "refused, and changed")
    except Exception as error:
        return "crashed", repr(error)
    journal.close()
    copies = list(path.parent.glob(f"{path.name}.damaged-*"))
    identical = [copy.read_bytes() == damaged for copy in copies]
    for copy in copies:
        copy.unlink()
    all_of_it = [HEADER, *RECORDS]
    if records != all_of_it[: len(records)]:
        return "wrong", "records that were never written"
    if len(records) == len(all_of_it):
        return None, ""
    if journal.damage is None:
        return "lost", f"{len(all_of_it) - len(records)} records, and not a word"
    # If the damaged record was the last, there is nothing to copy.
    missing = len(all_of_it) - len(records) - 1
    right = journal.damage.behind == missing and (identical == [True] or not missing)
    return (None, "") if right else ("lost", f"{journal.damage.behind} of {missing} whole records behind it")


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
