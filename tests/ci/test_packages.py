"""What a release is made of and by: the sdist's content, the workflow, the version in all its places."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CROSS = "aarch64-linux-gnu-g++"


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The files of an sdist, without the folder that they are in."""
    folder = tmp_path_factory.mktemp("sdist")
    build = "import sys; from scikit_build_core.build import build_sdist; build_sdist(sys.argv[1])"
    subprocess.run([sys.executable, "-c", build, folder], cwd=ROOT, check=True, capture_output=True)
    (sdist,) = folder.glob("laminabench-*.tar.gz")
    with tarfile.open(sdist) as archive:
        return {name.partition("/")[2] for name in archive.getnames()}


@pytest.mark.outside
@pytest.mark.skipif(
    shutil.which("git") is None, reason="there is no git here, which says what is of the tree"
)
def test_the_sdist_has_what_a_build_takes_and_no_more(content: set[str]) -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True)
    taken = ("baselines", "csrc", "engine", "laminabench", "share", "traces")
    expected = {name for name in tracked.stdout.split("\n") if name.split("/")[0] in taken}
    assert expected - content == set()
    single = {name for name in content if "/" not in name}
    assert single == {
        *("CHANGELOG.md", "CITATION.cff", "CMakeLists.txt", "LICENSE", "NOTICE", "PKG-INFO", "README.md"),
        "pyproject.toml",
    }
    assert {name.split("/")[0] for name in content} - single == set(taken)
    assert [name for name in content if "__pycache__" in name or name.endswith((".so", ".pyc"))] == []


@pytest.mark.long
@pytest.mark.outside
@pytest.mark.skipif(shutil.which(CROSS) is None, reason="there is no compiler for aarch64 here")
@pytest.mark.parametrize("folder", ["attention", "operators", "fhbn", "fhbn/rdma"])
def test_what_asks_for_a_processor_compiles_for_another(folder: str) -> None:
    flags = ["-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-Wno-psabi", f"-I{ROOT / 'csrc'}"]
    sources = sorted((ROOT / "csrc" / folder).glob("*.cpp"))
    assert sources
    done = subprocess.run([CROSS, *flags, *sources], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_no_code_is_compiled_for_the_machine_that_builds() -> None:
    files = [ROOT / "CMakeLists.txt", *(ROOT / "csrc").rglob("CMakeLists.txt")]
    assert [str(file) for file in files if re.search(r"-m(arch|tune|cpu)=", file.read_text())] == []
