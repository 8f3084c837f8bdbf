"""Command lines drawn from the declarations of all commands, with odd values and combinations, run here."""

from __future__ import annotations

import contextlib
import copy
import gc
import io
import os
import random
import resource
import shutil
import signal
import string
import time
import tomllib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import click

from experiments.disk import memory
from experiments.tally import Tally
from laminabench.cli.ending import BUG, DONE
from laminabench.cli.main import main, run

LONGEST_S = 30
MOST_BYTES = 1 << 30  # beyond what a thousand commands have taken
# Beyond this no memory is given, so that a case that asks for all of it cannot take the machine down.
ADDRESS_BYTES = 16 << 30

TRACE = "arrival_s,prompt_tokens,output_tokens\n" + "".join(
    f"{at / 10},{100 + 37 * at % 900},{5 + 7 * at % 20}\n" for at in range(20)
)
REPLAY = ("--trace", "in/t.csv", "--offline")
# Commands that run within a fraction of a second, with what makes them valid. Others are parsed and not run:
# they start servers or workers, or take minutes.
BASES: Mapping[str, Sequence[str]] = {
    "replay": (*REPLAY, "--no-out", "-q"),
    "sweep": (*REPLAY, "--vary", "seed=1,2", "--jobs", "1", "-q"),
    "compare": ("in/run", "in/run", "-q"),
    "report": ("in/run", "-o", "o.html"),
    "traces info": ("in/t.csv",),
    "traces export": ("in/t.csv", "-o", "o.parquet"),
    "traces fit": ("in/t.csv", "-o", "o.toml"),
    "traces synth": ("--num-requests", "5", "-o", "o.csv"),
    "traces list": (),
    "models list": (),
    "models show": ("llama3-8b",),
    "hardware list": (),
    "hardware show": ("h100",),
    "costs list": (),
    "costs show": ("vllm-0.14",),
    "import": ("in/vllm.json",),
    "export": ("in/run", "--to", "vllm-bench", "-o", "o.json"),
}
# Drawn a quarter as often: they take twenty times as long, and have few options.
SLOW = frozenset({"report", "models list", "traces list", "hardware list"})
# Words of command lines that start workers, connect or wait.
OUTSIDE = frozenset(
    {"live", "openai", "ray", "url", "header", "emulate", "fetch", "help", "help-all", "jobs", "metrics-port"}
)


def _words(text: str) -> list[str]:
    return text.split()


NUMBERS = (
    *("", " 1", str(2**31 - 1), str(2**31), str(2**63), str(10**40)),
    *_words("0 1 -1 2 7 64 1e3 0.5 1e-9 1e300 1e999 nan inf -0 1_0 0x10 ٣ 1. -- = 1:2 auto"),
)
TEXTS = (
    *("", " ", "\0", "\n", "\udcff", "\x1b[2J", "x" * 5000),
    *_words(
        "x - -- in/t.csv in/run in in/none in/broken.json in/vllm.json /dev/null é [bold] %s {} a:b s3:x"
    ),
    *_words("' \" $(x) llama3-8b h100 4xh100 lamina vllm 1:5 : 0:0 5:1 nan:inf h100=2 h100=-1 = azure-conv"),
    *_words("profile:azure-conv vllm-0.14 batches=1,2 seed=1..3 kv-tokens=1..9 none=1"),
)
OUTPUTS = ("", *_words("o.json o.csv o.svg d d/e/f . in /proc/x o o.html a:b"), "o" * 300)


class Command(NamedTuple):
    words: tuple[str, ...]
    declared: click.Command


@cache
def commands() -> Sequence[Command]:
    """Return all commands of the tree."""

    def within(group: click.Command, *words: str) -> Iterator[Command]:
        if isinstance(group, click.Group):
            context = click.Context(group)
            for name in group.list_commands(context):
                if command := group.get_command(context, name):
                    yield from within(command, *words, name)
        else:
            yield Command(words, group)

    return list(within(main))


def drawn_line(random_: random.Random) -> tuple[Command, list[str]]:
    """Return a command, and its arguments."""
    run_ones = [command for command in commands() if " ".join(command.words) in BASES]
    # Half of them replay: that has most options.
    first = [command for command in run_ones if command.words == ("replay",)]
    quick = [command for command in run_ones if " ".join(command.words) not in SLOW]
    command = random_.choice(
        random_.choice((first, random_.choice((quick, quick, quick, run_ones)), commands()))
    )
    words = list(BASES.get(" ".join(command.words), ()))
    options = [each for each in command.declared.params if isinstance(each, click.Option)]
    for _ in range(random_.choice((0, 1, 1, 2, 2, 3, 5))):
        if options and random_.random() < 0.95:
            words += _option(random_.choice(options), random_)
        else:
            words.insert(random_.randint(0, len(words)), random_.choice(TEXTS))
    if random_.random() < 0.1 and words:
        del words[random_.randrange(len(words))]
    return command, [word.replace("\0", "\\0") for word in words]  # no system has NULs in them


def _option(option: click.Option, random_: random.Random) -> list[str]:
    spelled = random_.choice([*option.opts, *option.secondary_opts])
    if option.is_flag or option.count:
        return [spelled]
    value = _value(option, random_)
    return [f"{spelled}={value}"] if spelled.startswith("--") and random_.random() < 0.3 else [spelled, value]


def _value(option: click.Option, random_: random.Random) -> str:
    kind = option.type
    if random_.random() < 0.1:
        return random_.choice((*NUMBERS, *TEXTS, "".join(random_.choices(string.printable, k=6))))
    if isinstance(kind, click.Choice):
        return str(random_.choice(list(kind.choices)))
    if isinstance(kind, click.IntRange | click.FloatRange):
        low, high = kind.min or 0, kind.max or 0
        whole = isinstance(kind, click.IntRange)
        near = [low, high, low - 1, high + 1, min(high, low + 1), random_.uniform(low, min(high, low + 100))]
        return random_.choice([*(str(int(each) if whole else each) for each in near), *NUMBERS])
    if isinstance(kind, click.Path) and {"-o", "--out", "--plot", "--timeline"} & set(option.opts):
        return random_.choice(OUTPUTS)
    return random_.choice(TEXTS + NUMBERS)


def prepared(folder: Path) -> None:
    """Write the files that command lines name."""
    inputs = folder / "in"
    shutil.rmtree(inputs, ignore_errors=True)
    inputs.mkdir()
    (inputs / "t.csv").write_text(TRACE)
    (inputs / "broken.json").write_text("{")
    result = Path(__file__).parents[2] / "laminabench" / "interchange" / "data" / "vllm.json"
    shutil.copy(result, inputs / "vllm.json")
    code, words = called(["replay", *REPLAY, "--out", "in/run", "-q", "--system", "vllm"])
    assert code == DONE, words


@contextlib.contextmanager
def warm() -> Iterator[None]:
    """Parse equal TOML once, and put a few bytes in place of plotly.js: neither depends on the case."""
    parsed = lru_cache(tomllib.loads)
    with (
        mock.patch("tomllib.loads", lambda text: copy.deepcopy(parsed(text))),
        mock.patch("plotly.offline.get_plotlyjs", return_value="/* plotly.js */"),
    ):
        yield


def called(words: Sequence[str]) -> tuple[int, str]:
    """Run a command line here; return its exit code and what it printed on stderr."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)  # a number that is none goes into results
        try:
            run(list(words))
        except SystemExit as end:
            return int(end.code or 0), err.getvalue()
    raise AssertionError("a command line ends in an exit code")


def _parsed(command: Command, words: Sequence[str]) -> tuple[int, str]:
    """Parse a command line without running it."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            command.declared.make_context(" ".join(command.words), list(words))
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            return 2, ""
    return DONE, ""


def _late(*_: object) -> None:
    raise TimeoutError(f"took more than {4 * LONGEST_S} s")


def _state(folder: str | Path) -> dict[str, tuple[int, int]]:
    """Return size and time of all files."""
    result = {}
    for entry in os.scandir(folder):
        status, is_file = entry.stat(follow_symlinks=False), entry.is_file()
        result[entry.path] = (status.st_size, status.st_mtime_ns) if is_file else (0, 0)
        if entry.is_dir(follow_symlinks=False):
            result |= _state(entry.path)
    return result


def command_lines(seeds: Sequence[int]) -> Tally:
    """Run command lines: none ends in an internal error, leaves half of an output, or takes all memory."""
    tally = Tally("command-lines")
    before, here = signal.signal(signal.SIGALRM, _late), Path.cwd()
    surroundings = dict(os.environ)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    with memory() as folder, warm():
        os.environ["LAMINABENCH_HOME"] = str(folder / "home")
        os.environ.pop("LAMINABENCH_DEBUG", None)
        os.chdir(folder)
        resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_BYTES, limits[1]))
        try:
            prepared(folder)
            gc.freeze()  # what stays is not looked through at every case
            clean, peak = _state(folder), 0
            for turn, number in enumerate(seeds):
                command, words = drawn_line(random.Random(number))
                kind, what = _case(command, words, folder, clean)
                tally.add(kind, " ".join(command.words), number, f"{what} {words}" if kind else "")
                if (state := _state(folder)) != clean:
                    for name in sorted(state.keys() - clean.keys(), reverse=True):
                        (os.rmdir if Path(name).is_dir() else os.unlink)(name)
                    if not clean.items() <= state.items():
                        prepared(folder)
                        clean = _state(folder)
                if turn == 1000:  # libraries have allocated what they need once
                    peak = _peak_bytes()
            tally.facts |= {"peak_mb": _peak_bytes() >> 20, "cpu_s": round(time.process_time(), 1)}
            if peak and (grown := _peak_bytes() - peak) > MOST_BYTES:
                tally.add("leaked", "all", seeds[0], f"{grown:,} bytes")
        finally:
            gc.unfreeze()
            os.chdir(here)
            os.environ.clear()
            os.environ.update(surroundings)
            signal.signal(signal.SIGALRM, before)
            resource.setrlimit(resource.RLIMIT_AS, limits)
    return tally


def _case(
    command: Command, words: list[str], folder: Path, clean: Mapping[str, Any]
) -> tuple[str | None, str]:
    """Return the kind of failure of one command line, or None, and what happened."""
    outside = any(part in OUTSIDE for word in words for part in (word, *word.lstrip("-").split("=", 1)))
    runs = " ".join(command.words) in BASES and not outside
    began = time.process_time()
    signal.alarm(4 * LONGEST_S)  # of a busy machine
    try:
        code, err = called([*command.words, *words]) if runs else _parsed(command, words)
    except Exception as error:
        return "crashed", repr(error)
    finally:
        signal.alarm(0)
    if code == BUG:
        return "crashed", err.splitlines()[-1] if err else "an internal error"
    if (took := time.process_time() - began) > LONGEST_S:
        return "crashed", f"took {took:.1f} s"
    new = _state(folder).keys() - clean.keys()
    home = str(folder / "home")
    left = sorted(name for name in new if ".partial" in name or (code and not name.startswith(home)))
    return ("lost", f"exit {code}, and left {left[:3]}") if left else (None, "")


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
