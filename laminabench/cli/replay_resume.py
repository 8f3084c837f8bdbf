"""`laminabench replay --resume`: the journal beside a Run that is being made, and the flags it keeps."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from laminabench.cli.ending import Interrupted, Terminated
from laminabench.cli.engine_extra import needed
from laminabench.errors import UserError

if TYPE_CHECKING:
    from laminabench.cli.output import Output
    from laminabench.runs.journal import Journal
    from laminabench.systems.live_story import Event
    from laminabench.traces.table import Trace

FORMAT_VERSION = 1
# What may be said anew when a replay is resumed: how it is told, and not what is replayed.
FREE = {"as_json", "quiet", "verbose", "timeline", "timeline_window", "plot", "resume"}
_PATHS = {"directory", "timeline", "plot"}


@dataclass
class Kept:
    """Where a live replay is kept until its Run is written: a journal, and what it had when it was found."""

    path: Path
    header: dict[str, Any]
    past: list[Event] = field(default_factory=list)
    journal: Journal | None = None

    @property
    def directory(self) -> Path:
        """Where the Run goes."""
        return self.path.with_suffix("")

    def open(self) -> Journal:
        """The journal to write to: a new one from the moment that there is something to go on with."""
        from laminabench.runs.journal import Journal

        if self.journal is None:
            self.journal = Journal.create(self.path, self.header)
        return self.journal

    def close(self) -> None:
        if self.journal:
            self.journal.close()

    @contextlib.contextmanager
    def until_written(self, out: Output) -> Iterator[None]:
        """The journal goes when the block has put the Run in its place; else it stays, and how to go on is
        told.
        """
        sentence = f"go on with: laminabench replay --resume {self.directory}"
        try:
            yield
            if self.journal:
                self.journal.remove()
        except KeyboardInterrupt:
            if self.journal:
                raise Interrupted(sentence) from None
            raise
        except Terminated:
            raise Terminated(*[sentence] * bool(self.journal)) from None
        except Exception:
            if self.journal:
                out.note(sentence)
            raise
        finally:
            self.close()


def begun(directory: Path, parameters: Mapping[str, Any], given: set[str], trace: Trace) -> Kept:
    """A new journal beside where the Run will be."""
    from laminabench.runs.journal import beside, require_none
    from laminabench.runs.replace import require_writable
    from laminabench.version import __version__

    header = {
        "format_version": FORMAT_VERSION,
        "laminabench": __version__,
        "command": ["laminabench", *sys.argv[1:]],
        "parameters": {name: plain(name, value) for name, value in parameters.items()},
        "given": sorted(given),
        "replaces": _there(directory),
        "trace": _identity(trace),
    }
    path = beside(directory)
    require_writable(path)
    require_none(path)
    return Kept(path, header)


def reopened(path: Path) -> Kept:
    """The journal of an interrupted replay, by its own name or the Run's; a UserError says why not."""
    from laminabench.runs.journal import SUFFIX, Journal, beside

    file = path if path.name.endswith(SUFFIX) else beside(path)
    if not file.exists():
        if _there(file.with_suffix("")):
            raise UserError(
                "replay-already-whole", f"{file.with_suffix('')} is whole: there is nothing to resume"
            )
        raise UserError("journal-missing", f"there is no {file}: nothing was interrupted there")
    with needed():
        journal, (header, *records) = Journal.reopen(file)
    try:
        return _understood(journal, header, records)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        journal.close()
        raise UserError(
            "journal-damaged", f"{file} is damaged: {error!r}; remove it and replay again"
        ) from error
    except UserError:
        journal.close()
        raise


def _understood(journal: Journal, header: dict[str, Any], records: list[Any]) -> Kept:
    from laminabench.systems.live_story import unpacked
    from laminabench.version import __version__

    version = (header["format_version"], header["laminabench"])
    if version != (FORMAT_VERSION, __version__):
        raise UserError(
            "journal-version",
            f"{journal.path} was written by laminabench {version[1]} (journal format {version[0]}) and this "
            f"is {__version__} ({FORMAT_VERSION}); resume it with that one, or remove it and replay again",
        )
    kept = Kept(journal.path, header, [unpacked(record) for record in records], journal)
    if _there(kept.directory) not in (None, header["replaces"]):
        raise UserError(
            "run-exists",
            f"{kept.directory} exists meanwhile and is left alone: move it away, or remove {journal.path}",
        )
    return kept


def in_force(kept: Kept, parameters: Mapping[str, Any], given: set[str]) -> tuple[dict[str, Any], set[str]]:
    """The flags of the interrupted replay, and which of them were given; a UserError for a contradiction."""
    was = kept.header["parameters"]
    for name in sorted(given - FREE):
        value = plain(name, parameters[name])
        if value != (str(kept.directory.absolute()) if name == "directory" else was[name]):
            raise UserError(
                "replay-resume-contradiction",
                f"{_flag(name)} contradicts the interrupted replay, which has {_said(was[name])}: leave it "
                f"out, the flags in {kept.path} are in force",
            )
    anew = FREE & given | FREE - _PATHS - {"timeline_window"}
    found = {name: _typed(name, value) for name, value in was.items()}
    found |= {name: parameters[name] for name in anew}
    return found | {"directory": kept.directory}, set(kept.header["given"]) | given


def require_same(kept: Kept, trace: Trace) -> None:
    """A UserError if the trace is not the one whose replay was interrupted."""
    was, now = kept.header["trace"], _identity(trace)
    if was != now:
        raise UserError(
            "replay-trace-changed",
            f"the trace {now['name']} is another one than when it was interrupted: {now['requests']:,} "
            f"requests, sha256 {now['sha256'] or 'none'}, and {kept.path} is of {was['requests']:,}, "
            f"{was['sha256'] or 'none'}",
        )


def plain(name: str, value: Any) -> Any:
    """A flag's value as a journal has it; a file's path in full, so that it is found from elsewhere too."""
    if isinstance(value, tuple | list):
        return [plain(name, each) for each in value]
    if isinstance(value, Path):
        return str(value.absolute())
    if name in ("trace", "model_name") and isinstance(value, str):
        # A catalogue's model is a name, whatever lies here; of traces a file goes first.
        is_path = os.sep in value or value.endswith(".json") or name == "trace"
        return str(Path(value).absolute()) if is_path and Path(value).exists() else value
    return value


def _typed(name: str, value: Any) -> Any:
    if isinstance(value, list):
        return tuple(value)
    return Path(value) if name in _PATHS and value is not None else value


def _identity(trace: Trace) -> dict[str, Any]:
    return {"name": trace.meta.name, "sha256": trace.meta.sha256, "requests": len(trace)}


def _there(directory: Path) -> str | None:
    """Which Run is there, by its manifest's checksum; None if nothing is, and nothing of anything else."""
    from laminabench.runs.format import MANIFEST, sha256_of

    path = directory / MANIFEST
    if path.is_file():
        return sha256_of(path)
    return "" if os.path.lexists(directory) else None


def _said(value: Any) -> str:
    """A flag's value as a sentence has it."""
    if value is None or value == [] or isinstance(value, bool):
        return "it" if value is True else "none"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _flag(name: str) -> str:
    """As a person writes it."""
    return next(each.opts[0] for each in click.get_current_context().command.params if each.name == name)
