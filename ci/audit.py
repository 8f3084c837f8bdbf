"""Query known vulnerabilities of all versions that are pinned: `make audit`, and a step of CI.

Fails on a finding, with its name and fixed version. If no index answers, it says so and succeeds:
there is no network, or an index that does not know of vulnerabilities.
"""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LOCKED = ROOT / "ci" / "locked"
# The first is a dependency of every installation: if its advisories are unavailable, skip the others.
FILES = ["core", "build", "engine", "dev", "wheel", "audit", "release", "torch-cpu", "cuda"]
PINS = ["baselines/vllm/pins-cpu.txt", "baselines/vllm/pins-cuda.txt", "ci/clients/requirements.txt"]


def tool(folder: Path) -> Path | None:
    """pip-audit in an environment of its own; None if it cannot be had."""
    requirements, installed = LOCKED / "audit.txt", folder / "installed.txt"
    if not installed.is_file() or installed.read_bytes() != requirements.read_bytes():
        venv.create(folder, clear=True, with_pip=True)
        pip = [str(folder / "bin" / "python"), "-m", "pip", "--quiet", "install", "--retries", "1"]
        locked = [
            "--require-hashes",
            "--no-deps",
            "--only-binary",
            ":all:",
            "--requirement",
            str(requirements),
        ]
        done = subprocess.run([*pip, *locked], capture_output=True, text=True, check=False)
        if done.returncode:
            return None
        installed.write_bytes(requirements.read_bytes())
    return folder / "bin" / "pip-audit"


def query(pip_audit: Path, pins: Path) -> list[dict[str, Any]] | None:
    """Return what is known of each package in a file; None if the index does not answer."""
    command = [str(pip_audit), "--disable-pip", "--require-hashes", "--progress-spinner", "off"]
    done = subprocess.run(
        [*command, "--format", "json", "--requirement", str(pins)],
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        dependencies: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        return None
    return dependencies


def findings(packages: list[dict[str, Any]]) -> list[str]:
    """Return a sentence for each vulnerability."""
    return [
        f"{package['name']} {package['version']}: {each['id']}, fixed in "
        + (", ".join(each["fix_versions"]) or "no version yet")
        for package in packages
        for each in package.get("vulns", ())
    ]


def main() -> int:
    pip_audit = tool(ROOT / "build" / "audit")
    if pip_audit is None:
        print("audit: skipped: pip-audit could not be installed (is there a network?)")
        return 0
    queried = 0
    problems: list[str] = []
    for pins in [*(LOCKED / f"{name}.txt" for name in FILES), *(ROOT / name for name in PINS)]:
        packages = query(pip_audit, pins)
        known = [package for package in packages or () if "skip_reason" not in package]
        if not known and not queried:
            print("audit: skipped: no index here knows of these versions")
            return 0
        queried += len(known)
        problems += findings(known)
    for sentence in sorted(set(problems)):
        print(f"audit: {sentence}", file=sys.stderr)
    print(f"audit: {queried} versions were checked, {len(set(problems))} vulnerabilities are known")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
