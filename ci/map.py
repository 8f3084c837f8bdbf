"""Draw the map in docs/architecture.md from the contracts in pyproject.toml and the packages' own docstrings.

python ci/map.py           writes it
python ci/map.py --check   fails if it is not what would be written
"""

from __future__ import annotations

import ast
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- the map: made by ci/map.py -->\n", "<!-- the map ends -->\n"
FOLDERS = {"laminabench": Path("laminabench"), "lamina": Path("engine/lamina")}


def contracts() -> list[dict[str, Any]]:
    """Return the contracts as import-linter reads them."""
    settings: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return list(settings["tool"]["importlinter"]["contracts"])


def purpose(path: Path) -> str:
    """Return the first sentence of a package's or module's docstring."""
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    docstring = ast.get_docstring(ast.parse((ROOT / source).read_text())) or ""
    paragraph = " ".join(docstring.partition("\n\n")[0].split())
    return paragraph.partition(". ")[0].rstrip(".")


def row(layer: str, folder: Path, name: str) -> str:
    path = folder / name
    label = f"{path}/" if (ROOT / path).is_dir() else f"{path}.py"
    return f"| {layer} | `{label}` | {purpose(path)} |"


def table(contract: dict[str, Any]) -> list[str]:
    """Return the layers of one distribution, the highest first, and then the modules that are in none."""
    folder = FOLDERS[contract["containers"][0]]
    lines = ["| layer | where | what it is for |", "|---|---|---|"]
    placed: set[str] = set()
    for number, layer in enumerate(contract["layers"], start=1):
        for name in (part.strip() for part in layer.split("|")):
            placed.add(name)
            lines.append(row(str(number), folder, name))
    # The contract of the suite is exhaustive; of the engine it leaves out what any layer may use.
    others = {path.stem for path in (ROOT / folder).glob("*.py")} - placed
    lines += [row("", folder, name) for name in sorted(others) if not name.startswith("__")]
    return lines


def drawn() -> str:
    rules = contracts()
    lines = []
    for contract in rules:
        if contract["type"] == "layers":
            folder = FOLDERS[contract["containers"][0]]
            lines += ["", f"**`{folder}/`**: {purpose(folder)}", "", *table(contract)]
    lines += ["", "`make lint` checks, with import-linter and late imports counted:", ""]
    for contract in rules:
        ignored = contract.get("ignore_imports", ())
        but = ", but for " + ", ".join(f"`{line}`" for line in ignored) if ignored else ""
        lines.append(f"- {contract['name']}{but}")
    return "\n".join(lines[1:]) + "\n"


def main(arguments: list[str]) -> int:
    page = PAGE.read_text()
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    expected = f"{before}{BEGIN}\n{drawn()}\n{END}{after}"
    if arguments != ["--check"]:
        PAGE.write_text(expected)
    elif page != expected:
        print("map: docs/architecture.md is not what the sources say: python ci/map.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
