"""Write pip's configuration, as `pip config list` shows it on stdin, for a root without this machine's files.

python bare_pip.py FOLDER writes FOLDER/pip.conf, and FOLDER/paths: the files and folders that it names.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

NOT_TAKEN = {"cache-dir", "no-cache-dir", "log", "prefix", "root", "target", "user"}  # it writes there


def main(folder: Path, lines: list[str]) -> None:
    settings: dict[str, dict[str, str]] = {}
    paths: set[Path] = set()
    # What the environment says goes before the files, and is shown before them.
    for line in sorted(lines, key=lambda line: line.startswith(":env:")):
        key, _, shown = line.partition("=")
        section, _, name = key.rpartition(".")
        if name in NOT_TAKEN or not section:
            continue
        value = str(ast.literal_eval(shown))
        settings.setdefault("global" if section == ":env:" else section, {})[name] = value
        for word in value.split():
            path = Path(unquote(urlsplit(word).path) if word.startswith("file://") else word)
            if path.is_absolute() and path.exists():
                # The pages of an index name its files relative to themselves, next to its own folder.
                paths.add(path.parent if name.endswith("index-url") else path)
    with (folder / "pip.conf").open("w") as file:
        for section, values in settings.items():
            file.write(f"[{section}]\n")
            for name, value in values.items():
                file.write(f"{name} = " + "\n    ".join(value.splitlines()) + "\n")
    (folder / "paths").write_text("".join(f"{path}\n" for path in sorted(paths)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.stdin.read().splitlines())
