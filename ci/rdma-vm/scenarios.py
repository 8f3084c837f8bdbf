"""Scenarios in virtual machines: a command in one, or in one of two that a cable joins."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

import project
from image import Image, log
from machine import BOOT_S, TIMED_OUT, Job, Machine, StrangeEndError
from wire import Wire

NEAR, FAR = "10.77.0.1", "10.77.0.2"  # of the RDMA devices
NEAR_ASIDE, FAR_ASIDE = "10.78.0.1", "10.78.0.2"
AGENT = "exec python3 tests/rdma/two/agent.py"  # starts in the far machine what tests in the near one ask for


def one(image: Image, command: str, limit_s: int, out: Path) -> int:
    """Run in one machine, whose device is on a dummy interface."""

    def run(folder: Path, archive: Path) -> int:
        job = Job("one", NEAR, command, limit_s, _environment("one"))
        with Machine(image, archive, job, folder / "one", _stdout()) as machine:
            return _end(machine, out)

    return _with_project(run)


def two(image: Image, command: str, limit_s: int, out: Path) -> int:
    """Run in a machine with a cable to another one, which it can have cut."""

    def run(folder: Path, archive: Path) -> int:
        near = Job("near", NEAR, command, limit_s, _environment("two"), NEAR_ASIDE, processors=1)
        # It has no end of its own; with room for the other one's start.
        far_limit_s = limit_s + int(BOOT_S)
        far = Job("far", FAR, AGENT, far_limit_s, _environment("far"), FAR_ASIDE, processors=1)
        with (
            (folder / "far-output").open("wb") as far_output,
            Machine(image, archive, near, folder / "near", _stdout(), _cables(folder, "server=on")) as tester,
        ):
            _wait_for(tester, *(folder / name for name in ("near/qmp", "near/host", "cable", "aside")))
            with Machine(
                image, archive, far, folder / "far", far_output, _cables(folder, "server=off")
            ) as other:
                _wait_for(other, folder / "far/qmp")
                with Wire(tester.folder, other.folder):
                    status = _end(tester, out)
                if status:
                    output = (folder / "far-output").read_text(errors="replace").strip()
                    log(f"output of the far machine: {output or 'nothing'}\n{other.last_words()}")
                return status

    return _with_project(run)


def _with_project(run: Callable[[Path, Path], int]) -> int:
    # Not below the checkout: the paths of sockets have to be short.
    with tempfile.TemporaryDirectory(prefix="rdma-vm-") as made:
        archive = Path(made, "project.cpio")
        project.pack(archive)
        return run(Path(made), archive)


def _end(machine: Machine, out: Path) -> int:
    status = machine.wait()
    if machine.running():  # it does not even stop; what it has left may be half a file
        log(f"machine {machine.job.name} hangs; it is ended after {machine.age_s:.0f} s")
    else:
        machine.results(out)
        limit = f", its limit of {machine.job.limit_s} s" if status == TIMED_OUT else ""
        log(f"exit status {status}{limit}, {machine.age_s:.0f} s after the start")
    if status:
        log(f"its console:\n{machine.last_words()}")
    return status


def _cables(folder: Path, end: str) -> tuple[str, ...]:
    return tuple(f"stream,{end},addr.type=unix,addr.path={folder / name}" for name in ("cable", "aside"))


def _wait_for(machine: Machine, *sockets: Path) -> None:
    """Wait until QEMU listens there."""
    while not all(path.is_socket() for path in sockets):
        if not machine.running() or machine.age_s > BOOT_S:
            raise StrangeEndError(f"QEMU did not start: {machine.last_words()}")
        time.sleep(0.01)


def _environment(place: str) -> dict[str, str]:
    return {
        "LAMINABENCH_RDMA_VM": place,
        "LAMINABENCH_RDMA_NEAR": NEAR,
        "LAMINABENCH_RDMA_FAR": FAR,
        "LAMINABENCH_RDMA_AGENT": FAR_ASIDE,
        "PYTHONPATH": project.PYTHONPATH,
        "PYTHONUNBUFFERED": "1",
        "CI": "1",
    }


def _stdout() -> IO[bytes]:
    sys.stdout.flush()
    return sys.stdout.buffer
