"""The journal of a server's requests, by which a server that is started again goes on with them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from laminabench.runs.journal import Journal
from laminabench.util.errors import UserError
from laminabench.util.progress import Listener

if TYPE_CHECKING:
    from lamina.http.service import Requests

FORMAT_VERSION = 1
KIND = "requests of a server"
PRIVATE = 0o600  # prompts and answers are in it


@contextlib.contextmanager
def opened(path: Path | None, model: str, listener: Listener) -> Iterator[Requests | None]:
    """Yield the requests of a journal, which is created if there is none; a UserError says why not."""
    if path is None:
        yield None
        return
    from lamina.http.recorder import RecordError
    from lamina.http.service import Requests

    header = {"kind": KIND, "format_version": FORMAT_VERSION, "model": model}
    if not path.exists():
        journal, records = Journal.create(path, header, PRIVATE), [header]
    else:
        journal, records = Journal.reopen(path, only_torn=True)
    journal.go_on = f"the same laminabench serve --journal {path}"
    with contextlib.closing(journal):
        if journal.damage:
            listener.note(str(journal.damage))
        _require_same(path, records[0], header)
        try:
            yield Requests(journal, header, records[1:])
        except RecordError as error:
            raise UserError(
                error.code, f"{path} is damaged: {error}; remove it and start the server again"
            ) from error


def _require_same(path: Path, begins: Any, header: Mapping[str, object]) -> None:
    """Raise a UserError for a journal of a replay, another format or another model."""
    if not isinstance(begins, dict) or begins.get("kind") != KIND:
        raise UserError("journal-not-a-journal", f"{path} is not a journal of a server: name another file")
    for name, value in header.items():
        if begins.get(name) != value:
            why = f"{path} has the {name.replace('_', ' ')} {begins.get(name)!r}, and this server {value!r}"
            raise UserError("serve-journal-other", f"{why}: name another file, or remove it")
