"""One virtual machine: QEMU, the ports to what runs in it, and how that ended.

QEMU emulates the processor (TCG), so that this runs where there is no KVM, as in most CI.
"""

from __future__ import annotations

import shutil
import subprocess
import tarfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from archive import Archive
from image import HERE, QEMU, Image

BOOT_S = 120.0  # the most that a start may take, on a busy machine
TIMED_OUT = 124  # as timeout(1) says it
CONSOLE_LINES = 30


class StrangeEndError(Exception):
    """The machine has ended without saying how the command did."""


@dataclass(frozen=True)
class Job:
    """Task of one machine."""

    name: str
    address: str  # of its RDMA device
    command: str  # for a shell, in /project
    limit_s: int
    environment: dict[str, str]
    aside: str = ""  # with a cable to another machine: its address on a second one, which is never cut
    processors: int = 2
    memory_mb: int = 2048
    disk: str = ""  # a file that it has as one

    def pack(self, file: Path) -> None:
        settings = {
            "NAME": self.name,
            "ADDRESS": self.address,
            "ASIDE": self.aside,
            "LIMIT_S": str(self.limit_s),
        }
        with file.open("ab") as out:
            made = Archive(out)
            made.add(HERE / "init", "init")
            made.text("job/settings", _assignments(settings))
            made.text("job/environment", _assignments(self.environment))
            made.text("job/command", self.command + "\n")
            made.end()


class Machine:
    """A machine that runs; leaving its context ends it, whatever it does.

    In `folder` are its console, its answers and its sockets: `qmp` to give QEMU orders, `host` for what the
    command asks of us (/dev/ports/host in there).
    """

    def __init__(
        self, image: Image, project: Path, job: Job, folder: Path, out: IO[bytes], cables: Sequence[str] = ()
    ) -> None:
        folder.mkdir()
        self.folder = folder
        self.job = job
        self._began = time.monotonic()
        with (folder / "qemu").open("wb") as complaints:
            self._qemu = subprocess.Popen(
                self._arguments(image, self._first_files(image, project), cables),
                stdin=subprocess.PIPE,  # never written to; at its end QEMU would take the port for closed
                stdout=subprocess.PIPE,  # not `out` itself, which QEMU would make non-blocking for us as well
                stderr=complaints,
                bufsize=0,
            )
        self._pump = threading.Thread(target=self._pass_on, args=(out,), name=f"output of {job.name}")
        self._pump.start()

    def __enter__(self) -> Machine:
        return self

    def __exit__(self, *_: object) -> None:
        self._qemu.kill()
        self._qemu.wait()
        self._pump.join()
        for pipe in (self._qemu.stdin, self._qemu.stdout):
            assert pipe is not None
            pipe.close()

    def wait(self) -> int:
        """Return the command's exit status."""
        try:
            self._qemu.wait(BOOT_S + self.job.limit_s)
        except subprocess.TimeoutExpired:
            return TIMED_OUT
        self._pump.join()
        status = self.folder / "status"  # QEMU makes it
        text = status.read_text().strip() if status.exists() else ""
        if not text:
            raise StrangeEndError(
                f"machine {self.job.name} ended without a result; its last output:\n{self.last_words()}"
            )
        return int(text)

    @property
    def age_s(self) -> float:
        return time.monotonic() - self._began

    def running(self) -> bool:
        return self._qemu.poll() is None

    def last_words(self) -> str:
        lines = [
            line
            for name in ("qemu", "console")
            if (self.folder / name).exists()
            for line in (self.folder / name).read_text(errors="replace").splitlines()
        ]
        return "\n".join(lines[-CONSOLE_LINES:])

    def results(self, into: Path) -> None:
        """Return the files that the command left in /out, after the machine has ended."""
        results = self.folder / "results"  # QEMU makes it
        if results.exists() and results.stat().st_size:
            with tarfile.open(results) as archive:
                archive.extractall(into, filter="data")

    def _pass_on(self, out: IO[bytes]) -> None:
        assert self._qemu.stdout is not None
        while output := self._qemu.stdout.read(1 << 16):
            out.write(output)
            out.flush()

    def _first_files(self, image: Image, project: Path) -> Path:
        initrd = self.folder / "initrd"
        with initrd.open("wb") as out:
            for part in (image.root, project):
                with part.open("rb") as read:
                    shutil.copyfileobj(read, out, 1 << 20)
        self.job.pack(initrd)
        return initrd

    def _arguments(self, image: Image, initrd: Path, cables: Sequence[str]) -> list[str]:
        # It ends with us, even if we are killed.
        made = ["setpriv", "--pdeathsig", "KILL", "nice", "-n", "10"]
        made += [QEMU, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]
        made += ["-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", "max"]
        if self.job.disk:
            made += ["-drive", f"file={self.job.disk},format=raw,if=virtio,cache=unsafe"]
        made += ["-smp", str(self.job.processors), "-m", str(self.job.memory_mb)]
        made += ["-kernel", str(image.kernel), "-initrd", str(initrd)]
        # Emulated on a busy machine, the timer may be too late for the kernel's test of it: a panic, which
        # ends the machine at once.
        settings = "console=ttyS0 no_timer_check panic=-1 quiet mitigations=off rdinit=/init"
        made += ["-append", settings]
        made += ["-serial", f"file:{self.folder / 'console'}"]
        made += ["-qmp", f"unix:{self.folder / 'qmp'},server=on,wait=off"]
        made += ["-device", "virtio-serial-pci"]
        made += _port("output", "stdio,signal=off")
        for name in ("status", "results"):
            made += _port(name, f"file,path={self.folder / name}")
        made += _port("host", f"socket,path={self.folder / 'host'},server=on,wait=off")
        for number, cable in enumerate(cables):
            made += ["-netdev", f"{cable},id=cable{number}"]
            address = f"52:54:00:00:0{number}:{self.job.address.rpartition('.')[2]:0>2}"
            made += ["-device", f"virtio-net-pci,id=nic{number},netdev=cable{number},mac={address},romfile="]
        return made


def _port(name: str, where: str) -> list[str]:
    kind, _, rest = where.partition(",")
    return ["-chardev", f"{kind},id={name},{rest}", "-device", f"virtserialport,chardev={name},name={name}"]


def _assignments(variables: dict[str, str]) -> str:
    return "".join(f"{name}='{value}'\n" for name, value in variables.items())
