"""The Debian image of the virtual machines, cached or built, and the tools that building needs.

$LAMINABENCH_HOME/rdma-vm has one image for each state of the files that define it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from laminabench.util.paths import home

HERE = Path(__file__).parent
# What an image's content follows from, with Debian's release.
INPUTS = ("root.sh", "../debian.sh", "modules", "archive.py")
QEMU = "qemu-system-x86_64"
PACKAGES = {QEMU: "qemu-system-x86", "debootstrap": "debootstrap"}  # of programs
INTERRUPTIONS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
IMAGES_RETAINED = 2  # images: of another checkout, or before a change


class UnavailableError(Exception):
    """An error: there cannot be such a machine here; the sentence says why, and what to do."""


class BuildError(Exception):
    """An error: there could be such a machine here, and building it has failed."""


@dataclass(frozen=True)
class Image:
    """A kernel and the file system that it starts with."""

    folder: Path

    @property
    def kernel(self) -> Path:
        return self.folder / "kernel"

    @property
    def root(self) -> Path:
        return self.folder / "root.cpio"


def image() -> Image:
    """Return the image, built if there is none, and QEMU, installed if it is missing."""
    release = _release()
    _install(QEMU)
    folder = home() / "rdma-vm"
    folder.mkdir(parents=True, exist_ok=True)
    image_of_release = Image(folder / _key(release))
    with (folder / "lock").open("w") as lock:
        _wait_for(lock)
        if not image_of_release.folder.is_dir():
            _build(image_of_release.folder)
            _forget_old(folder)
    os.utime(image_of_release.folder)
    _same_python(image_of_release)
    return image_of_release


def _wait_for(lock: IO[str]) -> None:
    """Another checkout's run may be building the same."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        log("waiting for another run, which builds its Debian")
        fcntl.flock(lock, fcntl.LOCK_EX)


def log(sentence: str) -> None:
    print(f"rdma-vm: {sentence}", file=sys.stderr, flush=True)


def _release() -> str:
    """Debian's name for what runs here."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise UnavailableError("the virtual machine is built on Linux on x86_64 only; run it there")
    try:
        about = platform.freedesktop_os_release()
    except OSError:  # a system that does not say which it is
        about = {}
    release = about.get("VERSION_CODENAME", "")
    if about.get("ID") != "debian" or not release:
        raise UnavailableError(
            f"the virtual machine is a Debian, made from this machine's own mirror, and this is "
            f"{about.get('PRETTY_NAME', 'something else')}; run it in a Debian, which may be a container"
        )
    return release


def _install(program: str) -> None:
    if shutil.which(program):
        return
    package = PACKAGES[program]
    as_root = _as_root()
    if as_root is None or not shutil.which("apt-get"):
        raise UnavailableError(f"there is no {program} and no right to install it; install {package}")
    log(f"installing {package}")
    apt = [*as_root, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-qq"]
    for command in (["update"], ["install", "-y", "--no-install-recommends", package]):
        done = subprocess.run([*apt, *command], capture_output=True, text=True, check=False)
        if done.returncode:
            raise UnavailableError(
                f"{package} could not be installed ({_last_line(done.stderr)}); install it"
            )


def _build(folder: Path) -> None:
    _install("debootstrap")
    as_root = _as_root()
    if as_root is None:
        raise UnavailableError(
            "only root can build the virtual machine's Debian; run it once as root or with sudo"
        )
    log("building its Debian (some minutes, once)")
    began = time.monotonic()
    _obeyed([*as_root, "nice", str(HERE / "root.sh"), str(folder), sys.executable], as_root)
    megabytes = sum(file.stat().st_size for file in folder.iterdir()) / 1e6
    log(f"built in {time.monotonic() - began:.0f} s: {folder} ({megabytes:.0f} MB)")


def _obeyed(command: list[str], as_root: list[str]) -> None:
    """Run to its end. If interrupted, terminate it and its children, so that they can clean up."""
    # Signals wait while it is started: one that came then would leave it running.
    signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPTIONS)
    with subprocess.Popen(
        command,
        start_new_session=True,
        preexec_fn=_announce,  # noqa: PLW1509 - there are no threads yet
    ) as running:
        try:
            _announce()
            status = running.wait()
        except BaseException:
            subprocess.run([*as_root, "sh", "-c", f"kill -s TERM -- -{running.pid}"], check=False)
            raise
    if status:
        raise BuildError("its Debian could not be built; what went wrong is above")


def _announce() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, INTERRUPTIONS)


def _as_root() -> list[str] | None:
    """Return the command that runs another as root."""
    if os.geteuid() == 0:
        return []
    if (
        shutil.which("sudo")
        and subprocess.run(["sudo", "-n", "true"], capture_output=True, check=False).returncode == 0
    ):
        return ["sudo", "-n"]
    return None


def _key(release: str) -> str:
    content = hashlib.sha256(release.encode())
    for name in INPUTS:
        content.update((HERE / name).read_bytes())
    return f"{release}-{content.hexdigest()[:12]}"


def _forget_old(folder: Path) -> None:
    made = sorted((path for path in folder.iterdir() if path.is_dir()), key=lambda path: path.stat().st_mtime)
    for path in made[:-IMAGES_RETAINED]:
        shutil.rmtree(path, ignore_errors=True)


def _same_python(image: Image) -> None:
    """Check the Python version: the native module and numpy are copied as built for this Python."""
    theirs = (image.folder / "python").read_text().strip()
    ours = f"python{sysconfig.get_python_version()}"
    if theirs != ours:
        raise UnavailableError(
            f"Debian's pyverbs is for {theirs} and this environment is {ours}'s; make it with PYTHON={theirs}"
        )


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "apt-get says nothing"
