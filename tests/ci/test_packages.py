"""What a release is made of and by: the sdist's content, the workflow, the version in all its places."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from laminabench.util.version import __version__

ROOT = Path(__file__).resolve().parents[2]
CROSS = "aarch64-linux-gnu-g++"


def read_yaml(path: str) -> dict[Any, Any]:
    """A YAML file of the tree; PyYAML takes the key `on` for True."""
    read = yaml.safe_load((ROOT / path).read_text())
    assert isinstance(read, dict)
    return read


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


def test_the_release_workflow_is_pinned_and_may_do_little() -> None:
    workflow = read_yaml(".github/workflows/release.yml")
    assert workflow[True] == {"push": {"tags": ["v*"]}}
    assert workflow["permissions"] == {}
    jobs = workflow["jobs"]
    granted = {name: job["permissions"] for name, job in jobs.items()}
    assert granted == {
        "sdist": {"contents": "read"},
        "wheels": {"contents": "read"},
        "publish": {"id-token": "write"},
        "attach": {"contents": "write"},
    }
    steps = [step for job in jobs.values() for step in job["steps"]]
    used = [step["uses"] for step in steps if "uses" in step]
    assert [name for name in used if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", name)] == []
    # An SBOM goes with it.
    assert [step["with"].get("name") for step in steps if "with" in step].count("sbom") == 2
    assert "secrets." not in (ROOT / ".github/workflows/release.yml").read_text()


def test_the_workflow_of_ci_is_pinned_and_may_only_read() -> None:
    workflow = read_yaml(".github/workflows/ci.yml")
    assert workflow["permissions"] == {"contents": "read"}
    (job,) = workflow["jobs"].values()
    assert "permissions" not in job
    used = [step["uses"] for step in job["steps"] if "uses" in step]
    assert len(used) == 2
    assert [name for name in used if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", name)] == []


def test_wheels_are_for_the_pythons_that_the_metadata_names() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    named = [
        result[1].replace(".", "")
        for line in settings["project"]["classifiers"]
        if (result := re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", line))
    ]
    built = settings["tool"]["cibuildwheel"]["build"]
    assert built == [f"cp{version}-*" for version in named]
    assert f"cp{named[0]}" != settings["tool"]["scikit-build"]["wheel"]["py-api"] == f"cp{named[1]}"


def test_the_citation_is_of_this_version() -> None:
    citation = read_yaml("CITATION.cff")
    assert citation["cff-version"] == "1.2.0"
    assert citation["version"] == __version__
    (paper,) = citation["references"]
    assert paper["url"] in (ROOT / "README.md").read_text()


def release_version(tag: str, root: Path) -> str:
    """What a copy of ci/release_version.py in `root` says of a tag; nothing where it is right."""
    script = root / "ci" / "release_version.py"
    script.parent.mkdir(exist_ok=True)
    shutil.copy(ROOT / "ci" / "release_version.py", script)
    done = subprocess.run([sys.executable, script, tag], capture_output=True, text=True, check=False)
    assert done.returncode == (1 if done.stderr else 0)
    return done.stderr


def test_a_tag_is_the_version_everywhere(tmp_path: Path) -> None:
    (tmp_path / "laminabench" / "util").mkdir(parents=True)
    (tmp_path / "laminabench" / "util" / "version.py").write_text('__version__ = "1.2.3"\n')
    (tmp_path / "CITATION.cff").write_text("version: 1.2.3\n")
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## 1.2.3 - 2026-12-01\n")
    assert release_version("v1.2.3", tmp_path) == ""
    assert "should be v1.2.3" in release_version("v1.2", tmp_path)
    (tmp_path / "CHANGELOG.md").write_text("## Unreleased\n## 1.2.30\n")
    assert "CHANGELOG.md" in release_version("v1.2.3", tmp_path)
    (tmp_path / "CITATION.cff").write_text("version: 1.2.2\n")
    assert "CITATION.cff says 1.2.2" in release_version("v1.2.3", tmp_path)


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
