"""ci/rdma-vm without starting a machine: what one is made of, orders to QEMU, and where none can be had."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.outside

HERE = Path(__file__).resolve().parents[2] / "ci" / "rdma-vm"
QEMU = "qemu-system-x86_64"
HEADER_BYTES = 110  # the magic, and 13 numbers of eight digits
MAGIC = b"070701"


@pytest.fixture(autouse=True)
def modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Its modules, by the names they have for each other."""
    monkeypatch.syspath_prepend(HERE)
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if str(HERE) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder for a machine's sockets, whose paths have to be short; pytest's are not."""
    if not shutil.which(QEMU):
        pytest.skip(f"there is no {QEMU}")
    with tempfile.TemporaryDirectory(prefix="vm-") as folder:
        yield Path(folder)


def test_without_qemu_it_says_so_and_succeeds(tmp_path: Path) -> None:
    if not Path("/etc/debian_version").exists():
        pytest.skip("what is missing is another sentence elsewhere than on Debian")
    done = subprocess.run(
        [sys.executable, HERE, "test"],
        env={"PATH": str(tmp_path), "HOME": str(tmp_path), "LAMINABENCH_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    missing = "there is no qemu-system-x86_64 and no right to install it; install qemu-system-x86"
    assert done.stderr == f"rdma-vm: skipped: {missing}\n"
    assert list(tmp_path.iterdir()) == []


def test_an_image_is_another_one_when_what_makes_it_changes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import image

    for name in image.INPUTS:
        shutil.copy(HERE / name, tmp_path / name)
    before = image._key("bookworm")
    monkeypatch.setattr(image, "HERE", tmp_path)
    assert image._key("bookworm") == before
    assert image._key("trixie") != before
    (tmp_path / "modules").write_text("dummy\n")
    assert image._key("bookworm") != before


def test_an_archive_holds_folders_before_what_is_in_them(tmp_path: Path) -> None:
    from archive import pack

    tree = tmp_path / "tree"
    (tree / "b" / "c").mkdir(parents=True)
    (tree / "b" / "c" / "file").write_bytes(b"seven..")
    (tree / "b" / "program").write_text("#!/bin/sh\n")
    (tree / "b" / "program").chmod(0o755)
    (tree / "a").symlink_to("b/program")
    os.utime(tree / "b" / "program", (5, 1_700_000_000))
    pack(tree, tmp_path / "cpio")
    result = entries((tmp_path / "cpio").read_bytes())
    assert list(result) == ["a", "b", "b/c", "b/program", "b/c/file", "TRAILER!!!"]
    assert result["a"] == (0o120777, result["a"][1], b"b/program")
    assert result["b/program"] == (0o100755, 1_700_000_000, b"#!/bin/sh\n")
    assert result["b/c/file"][2] == b"seven.."
    assert (tmp_path / "cpio").stat().st_size % 512 == 0


def test_an_archive_makes_the_folders_that_nobody_has_added() -> None:
    from archive import Archive

    out = io.BytesIO()
    made = Archive(out)
    made.text("job/deep/command", "true\n")
    made.text("job/settings", "A='1'\n")
    made.end()
    names = ["job", "job/deep", "job/deep/command", "job/settings", "TRAILER!!!"]
    assert list(entries(out.getvalue())) == names


def test_what_builds_the_image_tidies_up_when_it_is_interrupted() -> None:
    script = "trap 'echo tidied; exit 130' TERM; echo begun; while :; do :; done"
    code = (
        "import signal, sys, image\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))\n"
        f"image._obeyed(['sh', '-c', {script!r}], [])"
    )
    command = [sys.executable, "-c", code]
    environment = os.environ | {"PYTHONPATH": str(HERE)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as building:
        assert building.stdout is not None
        assert building.stdout.readline() == "begun\n"
        building.terminate()
        assert building.stdout.read() == "tidied\n"
        assert building.wait(60) == 143


def test_a_machine_that_does_not_start_says_what_qemu_said(tmp_path: Path, short: Path) -> None:
    from image import Image
    from machine import Job, Machine, StrangeEndError

    for name in ("kernel", "root.cpio", "project"):
        (tmp_path / name).write_text("nothing that starts")
    job = Job("one", "10.77.0.1", "true", 1, {})
    out = io.BytesIO()
    with Machine(Image(tmp_path), tmp_path / "project", job, short / "one", out) as machine:
        with pytest.raises(StrangeEndError, match=r"(?s)ended without a word.*kernel"):
            machine.wait()
        assert not machine.running()
        machine.results(tmp_path / "results")
    assert out.getvalue() == b""
    assert not (tmp_path / "results").exists()


def test_orders_to_qemu_are_obeyed_or_refused_aloud(short: Path) -> None:
    from wire import Monitor, RefusedError

    # It waits for somebody to connect, and its machine has nothing in it.
    machine = ["-machine", "none", "-nodefaults", "-display", "none"]
    command = [QEMU, *machine, "-qmp", f"unix:{short / 'qmp'},server=on"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as qemu:
        assert qemu.stderr is not None
        assert "waiting for connection" in qemu.stderr.readline()
        monitor = Monitor(short / "qmp")
        try:
            monitor.order("stop")
            with pytest.raises(RefusedError, match="QEMU refused set_link: Device 'nic0' not found"):
                monitor.order("set_link", name="nic0", up=False)
            monitor.order("quit")
            assert qemu.wait(60) == 0
        finally:
            monitor.close()
            qemu.kill()


def entries(archive: bytes) -> dict[str, tuple[int, int, bytes]]:
    """Mode, time and content by name, read as the kernel's documentation has it."""
    result: dict[str, tuple[int, int, bytes]] = {}
    at = 0
    while "TRAILER!!!" not in result:
        assert archive[at : at + 6] == MAGIC
        numbers = [int(archive[at + 6 + 8 * n : at + 14 + 8 * n], 16) for n in range(13)]
        mode, mtime, size, name_bytes = numbers[1], numbers[5], numbers[6], numbers[11]
        name = archive[at + HEADER_BYTES : at + HEADER_BYTES + name_bytes - 1].decode()
        content = aligned(at + HEADER_BYTES + name_bytes)
        result[name] = (mode, mtime, archive[content : content + size])
        at = aligned(content + size)
    return result


def aligned(at: int) -> int:
    return at + -at % 4
