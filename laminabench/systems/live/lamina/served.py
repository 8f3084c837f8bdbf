"""The reference engine behind an HTTP API: from the user's choices to a server, or a sentence why not."""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from laminabench.catalog.families import load_models
from laminabench.runs.journal import Journal
from laminabench.systems.live.lamina.checks import check
from laminabench.systems.live.lamina.memory import free_bytes, kv_of_each
from laminabench.systems.live.lamina.setup import LiveSetup
from laminabench.systems.live.lamina.starting import opened
from laminabench.util import safe_parse
from laminabench.util.errors import CheckFailedError, UserError
from laminabench.util.progress import Listener
from laminabench.util.shutdown import end_at_once

if TYPE_CHECKING:
    from lamina.http.choice import Tokenizer
    from lamina.http.service import Requests

KEY_VARIABLE = "LAMINABENCH_API_KEY"
# What each of the sequences that decode together may have, unless --kv-tokens says otherwise.
TOKENS_EACH = 4096
JOURNAL_KIND, JOURNAL_VERSION = "requests of a server", 1
JOURNAL_MODE = 0o600  # prompts and answers are in it


@dataclass(frozen=True, slots=True)
class ServeSetup:
    """The user's choices, resolved."""

    live: LiveSetup
    name: str  # that clients call the model by
    host: str
    port: int
    tokenizer: Path | None
    api_key: str | None = field(repr=False)
    limits: Mapping[str, Any]  # of lamina.http.Limits, those that a user can choose
    verbose: bool = False
    journal: Path | None = None  # of requests that outlive the server


def api_key(file: Path | None) -> str | None:
    """Return the key that clients must send, from the file or the environment; None if there is none."""
    if file is None:
        text, where = os.environ.get(KEY_VARIABLE), KEY_VARIABLE
        if text is None:
            return None
    else:
        try:
            text, where = safe_parse.text(file), str(file)
        except UnicodeDecodeError as error:
            raise UserError("serve-api-key", f"{file}: an API key is one line of text") from error
    key = text.strip()
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise UserError(
            "serve-api-key", f"{where}: an API key is one line of ASCII characters without spaces"
        )
    return key


def allowed_hosts(names: Sequence[str]) -> tuple[str, ...]:
    """Return the host names that clients may use, without ports."""
    for name in names:
        if not re.fullmatch(
            r"[\w.-]+|\[?[0-9a-f:.]*:[0-9a-f:.]*:[0-9a-f:.]*\]?", name, re.ASCII | re.IGNORECASE
        ):
            why = f"--allowed-host {name}: give one name or address, without a port, as my-machine"
            raise UserError("serve-allowed-host", why)
    return tuple(names)


def tokenizer_of(source: str, given: Path | None) -> Path | None:
    """Return the tokenizer's folder: the user's, or that of the model's weights."""
    if given is not None:
        if not given.exists():
            raise UserError("serve-no-tokenizer", f"--tokenizer {given}: there is no such file or folder")
        return given
    path = Path(source)
    if source.strip().lower() in load_models() or not path.exists():
        return None
    folder = path if path.is_dir() else path.parent
    return folder if (folder / "tokenizer.json").is_file() else None


def serve(setup: ServeSetup, *, listener: Listener, ready: Callable[[str], None]) -> None:
    """Serve until a signal. However it ends, the workers have ended too."""
    from lamina.http.address import bound

    _require_private(setup)
    check(setup.live)
    try:
        sock = bound(setup.host, setup.port)
    except OSError as error:
        raise UserError("serve-unbound", _unbound(setup, error)) from error
    with sock, _requests(setup.journal, setup.name, listener) as requests:
        tokenizer = _tokenizer(setup)
        live = setup.live
        tokens = kv_of_each(live, live.max_num_seqs * TOKENS_EACH, free_bytes(live))
        with opened(live, tokens, "fifo", listener=listener) as engine:
            from lamina.http.app import Serving  # with torch, once the port is known to be free
            from lamina.http.service import Limits, Service
            from laminabench.util import version

            service = Service(
                engine,
                setup.name,
                tokenizer,
                Limits(**setup.limits),
                setup.api_key,
                version.describe(),
                requests,
            )
            url = _url(setup.host, sock.getsockname()[1])
            serving = Serving(
                service, sock, ready=lambda: ready(url), at_once=end_at_once, verbose=setup.verbose
            )
            try:
                failed = serving.run()
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                # Another program has begun to listen meanwhile.
                raise UserError("serve-unbound", _unbound(setup, error)) from error
    if failed:
        raise CheckFailedError("serve-failed", failed)


def _require_private(setup: ServeSetup) -> None:
    from lamina.http.address import is_loopback

    if setup.api_key is None and not is_loopback(setup.host):
        raise UserError(
            "serve-without-key",
            f"--host {setup.host} is reachable from other machines: give an API key with --api-key-file or "
            f"{KEY_VARIABLE}, or leave --host out",
        )


def _tokenizer(setup: ServeSetup) -> Tokenizer | None:
    if setup.tokenizer is None:
        return None
    from lamina.http.choice import Tokenizer, TokenizerError

    try:
        return Tokenizer.load(setup.tokenizer)
    except TokenizerError as error:
        raise UserError(error.code, f"--tokenizer: {error}") from error


def _unbound(setup: ServeSetup, error: OSError) -> str:
    return (
        f"cannot listen on {setup.host} port {setup.port}: {error.strerror or error}; "
        "choose another --port, or 0 for any"
    )


def _url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


@contextlib.contextmanager
def _requests(path: Path | None, model: str, listener: Listener) -> Iterator[Requests | None]:
    """Yield the requests of a journal, which is created if there is none; a UserError says why not."""
    if path is None:
        yield None
        return
    from lamina.http.recorder import RecordError
    from lamina.http.service import Requests

    header = {"kind": JOURNAL_KIND, "format_version": JOURNAL_VERSION, "model": model}
    if not path.exists():
        journal, records = Journal.create(path, header, JOURNAL_MODE), [header]
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
    if not isinstance(begins, dict) or begins.get("kind") != JOURNAL_KIND:
        raise UserError("journal-not-a-journal", f"{path} is not a journal of a server: name another file")
    for name, value in header.items():
        if begins.get(name) != value:
            why = f"{path} has the {name.replace('_', ' ')} {begins.get(name)!r}, and this server {value!r}"
            raise UserError("serve-journal-other", f"{why}: name another file, or remove it")
