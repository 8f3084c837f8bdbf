"""Hold the version, where it is written, against a tag: python ci/release_version.py v0.2.0

One sentence and exit code 1 where the package, CITATION.cff or CHANGELOG.md says something else.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def wrong(tag: str, root: Path) -> str | None:
    """Return the problem of a release with this tag, or None."""
    package = re.search(
        r'^__version__ = "([^"]+)"$', (root / "laminabench" / "util" / "version.py").read_text(), re.MULTILINE
    )
    cited = re.search(r"^version: (\S+)$", (root / "CITATION.cff").read_text(), re.MULTILINE)
    if package is None or cited is None:
        return "laminabench/util/version.py or CITATION.cff has no version"
    version = package[1]
    if tag != f"v{version}":
        return (
            f"the tag is {tag}, but laminabench/util/version.py says {version}: the tag should be v{version}"
        )
    if cited[1] != version:
        return f"CITATION.cff says {cited[1]}, but laminabench/util/version.py {version}"
    if not re.search(rf"^## \[?{re.escape(version)}\b", (root / "CHANGELOG.md").read_text(), re.MULTILINE):
        return f"CHANGELOG.md has no section '## {version}'; rename 'Unreleased'"
    return None


if __name__ == "__main__":
    sys.exit(wrong(sys.argv[1], ROOT))
