"""An experiment in a separate process: if a case kills it, that is recorded and the other cases still run."""

from __future__ import annotations

import contextlib
import importlib
import mmap
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import overload

import msgspec

from experiments import child_environment
from experiments.tally import Tally

# The time to end after an interrupt.
_GRACE_S = 10.0
_AT_BYTES = 8


class _Watched(Sequence[int]):
    """Seeds that record the current one in memory that outlives the process."""

    def __init__(self, seeds: Sequence[int], at: mmap.mmap) -> None:
        self._seeds, self._at = seeds, at

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[int]: ...
    def __getitem__(self, index: int | slice) -> int | Sequence[int]:
        return self._seeds[index]

    def __len__(self) -> int:
        return len(self._seeds)

    def __iter__(self) -> Iterator[int]:
        for place, seed in enumerate(self._seeds):
            self._at[:_AT_BYTES] = place.to_bytes(_AT_BYTES, "little")
            yield seed


def run(place: str, seeds: Sequence[int], environment: Mapping[str, str] | None = None) -> Tally:
    """Run "module:function" of this package with these seeds in another process."""
    tally = Tally(place.partition(":")[2].replace("_", "-"))
    left = seeds
    while left:
        with tempfile.TemporaryDirectory() as folder:
            status = _run(place, left, Path(folder), environment or {})
            if not status:
                tally.join(msgspec.json.decode(Path(folder, "tally").read_bytes(), type=Tally))
                return tally
            if status > 0:
                raise RuntimeError(f"{place} ended with status {status}, as its traceback says")
            at = int.from_bytes(Path(folder, "at").read_bytes(), "little")
        what = f"died of signal {-status} at this case; {at:,} before it are not counted"
        tally.add("crashed", "the process", left[at], what)
        left = left[at + 1 :]
    return tally


def _run(place: str, seeds: Sequence[int], folder: Path, environment: Mapping[str, str]) -> int:
    Path(folder, "at").write_bytes(bytes(_AT_BYTES))
    Path(folder, "seeds").write_bytes(msgspec.json.encode(list(seeds)))
    command = [sys.executable, "-m", "experiments.isolated", place, str(folder)]
    with subprocess.Popen(command, env=child_environment(environment)) as running:
        try:
            return running.wait()
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                running.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                running.wait(_GRACE_S)
            running.kill()
            raise


def main() -> None:
    """Run `python -m experiments.isolated MODULE:FUNCTION FOLDER`."""
    place, folder = sys.argv[1], Path(sys.argv[2])
    module, _, function = place.partition(":")
    seeds = msgspec.json.decode((folder / "seeds").read_bytes(), type=list[int])
    with (folder / "at").open("r+b") as file, mmap.mmap(file.fileno(), _AT_BYTES) as at:
        experiment = getattr(importlib.import_module(f"experiments.{module}"), function)
        tally = experiment(_Watched(seeds, at))
    (folder / "tally").write_bytes(msgspec.json.encode(tally))


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
        sys.exit(0)
    sys.exit(130)
