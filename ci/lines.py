"""Check the size of each package against its line budget: python ci/lines.py

Budgets are in ci/lines.toml. Raising one is a decision that the commit message explains.

python ci/lines.py --list   prints every package's size and budget
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SUFFIXES = {".py", ".cpp", ".hpp", ".h", ".c", ".cu", ".cuh", ".js"}


def lines(folder: Path) -> int:
    """Count the lines of source in a folder, or in the modules directly in it where it ends in `/*`."""
    paths = folder.parent.glob("*") if folder.name == "*" else folder.rglob("*")
    files = (path for path in paths if path.suffix in SUFFIXES and path.is_file())
    return sum(path.read_bytes().count(b"\n") for path in files)


def main() -> int:
    """Print each package over its budget; the exit status is 1 if there is one."""
    budgets: dict[str, int] = tomllib.loads((ROOT / "ci" / "lines.toml").read_text())["lines"]
    sizes = {name: lines(ROOT / name) for name in budgets}
    if "--list" in sys.argv[1:]:
        for name, size in sizes.items():
            print(f"{size:7,} of {budgets[name]:7,}  {name}")
    covered = {ROOT / name for name in budgets}
    packages = (
        init.parent for top in ("laminabench", "engine/lamina") for init in ROOT.glob(f"{top}/*/__init__.py")
    )
    missing = [str(package.relative_to(ROOT)) for package in packages if package not in covered]
    over = [
        f"{name} has {size:,} lines, its budget is {budgets[name]:,}"
        for name, size in sizes.items()
        if size > budgets[name]
    ]
    wrong = over + [f"{name} has no budget" for name in missing]
    for sentence in wrong:
        print(
            f"lines: {sentence}: shorten it, or change ci/lines.toml and say why in the commit",
            file=sys.stderr,
        )
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
