"""Make laminabench/api/keyword_types.pyi, the types of the Python API's keywords, from the requests.

python ci/keywords.py           writes it
python ci/keywords.py --check   fails if it is not what would be written
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from laminabench.api.keywords import keywords_of
from laminabench.requests.compare import CompareRequest
from laminabench.requests.fields import Field, Request
from laminabench.requests.plan import PlanRequest
from laminabench.requests.replay import FILES, ReplayRequest
from laminabench.systems.registry import NAMES

STUB = Path(__file__).resolve().parents[1] / "laminabench" / "api" / "keyword_types.pyi"
KINDS: tuple[type[Request], ...] = (ReplayRequest, CompareRequest, PlanRequest)


def stub() -> str:
    """Return the stub's text."""
    lines = [
        '"""Made by ci/keywords.py from laminabench/requests."""',
        "",
        "import os",
        "from collections.abc import Mapping, Sequence",
        "from typing import Literal, TypedDict",
    ]
    for kind in KINDS:
        lines += ["", f"class {kind.__name__.replace('Request', 'Keywords')}(TypedDict, total=False):"]
        lines += [f"    {name}: {_type(field)}" for name, field in keywords_of(kind).items()]
    return "\n".join(lines) + "\n"


def _type(field: Field) -> str:
    """Return the type of a keyword, in Python's words."""
    if field.name == "system":
        return f"Literal[{', '.join(map(_quoted, NAMES))}]"
    metavar = field.option.metavar or ""
    if field.repeatable:
        path = " | os.PathLike[str]" if field.name in FILES else ""
        key, equals, _ = metavar.partition("=")
        named = "Mapping[str, float | str] | " if equals and key.isalpha() else ""
        return f"{named}str{path} | Sequence[str{path}]"
    if field.option.kind == "window":
        return "str | tuple[float | None, float | None]"
    words = list(dict.fromkeys(word for each in field.alternatives() for word in _words(each)))
    if field.name in FILES:
        words.append("os.PathLike[str]")
    if metavar.startswith("A,B"):
        words.append("Sequence[str]")
    return " | ".join(words)


def _words(kind: Any) -> Iterator[str]:
    if get_origin(kind) is Literal:
        yield f"Literal[{', '.join(map(_quoted, sorted(get_args(kind))))}]"
    else:
        yield getattr(kind, "__origin__", kind).__name__


def _quoted(word: str) -> str:
    return f'"{word}"'


if __name__ == "__main__":
    made = stub()
    if sys.argv[1:] == ["--check"]:
        if not STUB.is_file() or STUB.read_text() != made:
            sys.exit(f"{STUB.name} is not what the requests say: run python ci/keywords.py")
    else:
        STUB.write_text(made)
