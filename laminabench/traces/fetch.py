"""Downloads of trace files: resumed when cut, checked against their sha256, put in place whole."""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import io
import os
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from laminabench.traces.catalogue import Entry, RemoteFile, downloads, record, sha256_of
from laminabench.util.atomic import force
from laminabench.util.errors import CheckFailedError, UserError
from laminabench.util.paths import expanded

CHUNK = 1 << 18
ATTEMPTS = 5
# No published trace comes near; what does not end is not written until the disk is full.
MOST_BYTES = 1 << 38
FIRST_PAUSE_S = 0.2
# No answer for this long means the network is not there or the server hangs.
TIMEOUT_S = 20.0

Progress = Callable[[int, int | None], None]


class DownloadError(UserError):
    """The file could not be brought here; the partial file is stored for the next attempt."""


@dataclass(frozen=True, slots=True)
class _Terms:
    """Limits on retries, and what an answer must say of its length."""

    attempts: int
    timeout_s: float
    most_bytes: int | None
    # Without a checksum only the length shows whether a download is whole.
    length_needed: bool
    # What the publisher's file has, where that is known: more is another file.
    known_bytes: int | None = None


def fetch(
    entry: Entry,
    *,
    base: str | None = None,
    progress: Progress = lambda done, total: None,
    attempts: int = ATTEMPTS,
    timeout_s: float = TIMEOUT_S,
    most_bytes: int | None = None,
) -> Path:
    """Return the entry's file in the downloads folder, downloading it if needed.

    `base` is a folder or a URL that holds the file under its upstream name, instead of the publisher's. With
    `most_bytes` a larger download, or one of unknown length, is given up before it begins.
    """
    file = entry.file
    target = entry.downloaded_path
    if _is_here(file, target):
        return target
    with _locked(downloads() / f"{file.name}.part") as part:
        # Another process may have finished while this one waited for the lock.
        if _is_here(file, target):
            return target
        if base is not None and "://" not in base:
            _copy(expanded(base) / file.name, part, progress, file.bytes)
        else:
            url = file.url if base is None else f"{base.rstrip('/')}/{file.name}"
            terms = _Terms(attempts, timeout_s, most_bytes, file.sha256 is None, file.bytes)
            _download(url, part, progress, terms)
        _check(entry.name, file, part)
        _put(part, target)
        _validator_of(part).unlink(missing_ok=True)
    return target


def _put(part: IO[bytes], target: Path) -> None:
    """Move the finished download to its name."""
    try:
        os.fsync(part.fileno())
        os.replace(part.name, target)  # noqa: PTH105 - the atomic one, by name
        force(target.parent)
    except OSError as error:
        raise DownloadError("download-cannot-write", f"cannot write {target}: {error.strerror}") from error


def _is_here(file: RemoteFile, target: Path) -> bool:
    return target.is_file() and (file.sha256 is None or sha256_of(target) == file.sha256)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[IO[bytes]]:
    """Open the partial file for this process alone; an empty one is not left behind."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            # Unbuffered: a full disk is noticed by the write that meets it, not when the file is closed.
            part = path.open("ab+", buffering=0)
            fcntl.flock(part, fcntl.LOCK_EX)
            # The process that had the lock may have renamed it to the finished file, or be about to.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(path.stat(), os.fstat(part.fileno())):
                    break
            part.close()
    except OSError as error:
        raise DownloadError(
            "download-cannot-write",
            f"cannot write {path}: {error.strerror}; set LAMINABENCH_HOME to a folder you own",
        ) from error
    with part:
        try:
            yield part
        finally:
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_size == 0:
                    path.unlink()


def _copy(source: Path, part: IO[bytes], progress: Progress, known_bytes: int | None) -> None:
    try:
        with source.open("rb") as origin:
            _restart(part)
            total = source.stat().st_size
            _pump(origin, part, 0, total, progress, str(source), known_bytes or total)
    except OSError as error:
        raise DownloadError("download-cannot-read", f"cannot read {source}: {error.strerror}") from error


def _download(url: str, part: IO[bytes], progress: Progress, terms: _Terms) -> None:
    _check_address(url)
    reason: object = "no answer"
    for attempt in range(terms.attempts):
        if attempt:
            time.sleep(FIRST_PAUSE_S * 2 ** (attempt - 1))
        before = part.seek(0, os.SEEK_END)
        try:
            if _continue(url, part, progress, terms):
                return
            reason = "the connection was cut"
        except urllib.error.HTTPError as error:
            reason = f"HTTP {error.code} {error.reason}"
            if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
                _restart(part)
            elif error.code < 500 and error.code != http.client.TOO_MANY_REQUESTS:
                raise DownloadError("download-failed", f"cannot download {url}: {reason}") from error
        except urllib.error.URLError as error:
            reason = error.reason
            unreachable = not isinstance(reason, TimeoutError | ConnectionResetError)
            if isinstance(reason, OSError):
                reason = reason.strerror or reason
            # Nothing ever answered: there is no network here, more attempts would only keep the user waiting.
            if before == 0 and unreachable:
                break
        except (http.client.InvalidURL, ValueError) as error:
            # Of ours, which `_check_address` lets through, or one that we were sent on to.
            raise DownloadError(
                "download-bad-address", f"cannot download {url}: not an address ({error})"
            ) from error
        except (OSError, http.client.HTTPException) as error:
            reason = str(error) or type(error).__name__
    have = part.seek(0, os.SEEK_END)
    hint = f" after {have:,} bytes; run the same command again to resume" if have else ""
    raise DownloadError("download-failed", f"cannot download {url}: {reason}{hint}")


def _check_address(url: str, what: str | None = None) -> None:
    what = what or f"cannot download {url}"
    if not url.startswith(("http://", "https://")):
        raise DownloadError(
            "download-bad-address",
            f"{what}: only http and https are supported; give a folder as a plain path",
        )
    try:
        parts = urllib.parse.urlsplit(url)
        known = bool(parts.hostname) and parts.port != 0
    except ValueError:
        known = False
    if not known:
        raise DownloadError(
            "download-bad-address", f"{what}: not an address; write http://HOST[:PORT]/FOLDER"
        )


def _continue(url: str, part: IO[bytes], progress: Progress, terms: _Terms) -> bool:
    """Download and append the missing part; False if the answer ended early."""
    have = part.seek(0, os.SEEK_END)
    validator = _validator_of(part)
    request = urllib.request.Request(
        url, headers={"User-Agent": "laminabench", "Accept-Encoding": "identity"}
    )
    if have and (tag := _tag_in(validator)):
        # If-Range: a file that changed upstream comes whole instead of as a tail that does not fit.
        request.add_header("Range", f"bytes={have}-")
        request.add_header("If-Range", tag)
    elif have:
        _restart(part)
        have = 0
    with _opener().open(request, timeout=terms.timeout_s) as answer:
        if answer.status != http.client.PARTIAL_CONTENT and have:
            _restart(part)
            have = 0
        length = answer.headers.get("Content-Length", "")
        total = have + int(length) if length.isdecimal() else None
        _check_length(url, total, terms)
        tag = answer.headers.get("ETag") or answer.headers.get("Last-Modified")
        if tag and not tag.startswith("W/"):
            validator.write_text(tag, encoding="ascii", errors="ignore")
        # Of unknown length it may have as many as anybody would take.
        most = min(
            each for each in (terms.known_bytes, total, terms.most_bytes, MOST_BYTES) if each is not None
        )
        done = _pump(answer, part, have, total, progress, url, most)
    return total is None or done == total


class _Redirects(urllib.request.HTTPRedirectHandler):
    """A handler of redirects within http and https: one to a file or another protocol is refused."""

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        if req.type == "https" and newurl.startswith("http:"):
            raise DownloadError(
                "download-bad-address", f"cannot download {req.full_url}: it leads from https to {newurl}"
            )
        _check_address(newurl, f"cannot download {req.full_url}: it leads to {newurl}")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _opener() -> urllib.request.OpenerDirector:
    """Return an opener for http and https alone, by the machine's proxies."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler,
        urllib.request.HTTPHandler,
        urllib.request.HTTPSHandler,
        _Redirects,
        urllib.request.HTTPDefaultErrorHandler,
        urllib.request.HTTPErrorProcessor,
        urllib.request.UnknownHandler,
    ):
        opener.add_handler(handler())
    return opener


def _check_length(url: str, total: int | None, terms: _Terms) -> None:
    if total is None and terms.length_needed:
        raise DownloadError(
            "download-unverifiable",
            f"cannot download {url}: the server does not say how long it is, nor the publisher its "
            "sha256, so its completeness cannot be checked",
        )
    if total is not None and total > min(terms.known_bytes or MOST_BYTES, MOST_BYTES):
        raise _too_long(url, terms.known_bytes or MOST_BYTES, f"it says that it has {total:,}")
    if terms.most_bytes is not None and (total is None or total > terms.most_bytes):
        size = "of unknown size" if total is None else f"{total / 1e6:,.0f} MB"
        raise DownloadError("download-too-large", f"it is {size}: ask for it with `laminabench traces fetch`")


def _too_long(what: str, most: int, how: str) -> DownloadError:
    return DownloadError(
        "download-longer-than-known",
        f"{what} is not the file that was published: it should have {most:,} bytes at most, and {how}",
    )


def _pump(
    source: IO[bytes], sink: IO[bytes], done: int, total: int | None, progress: Progress, what: str, most: int
) -> int:
    progress(done, total)
    while chunk := source.read(CHUNK):
        if done + len(chunk) > most:
            _restart(sink)
            raise _too_long(what, most, "more came")
        rest = memoryview(chunk)
        try:
            while rest:
                rest = rest[sink.write(rest) :]
        except OSError as error:
            raise DownloadError(
                "download-cannot-write", f"cannot write {sink.name}: {error.strerror}"
            ) from error
        done += len(chunk)
        progress(done, total)
    return done


def _check(name: str, file: RemoteFile, part: IO[bytes]) -> None:
    path = Path(part.name)
    actual = sha256_of(path)
    if file.sha256 is None:
        record(downloads() / file.name, actual)
    elif actual != file.sha256:
        size = path.stat().st_size
        _restart(part)
        raise CheckFailedError(
            "download-wrong-checksum",
            f"{name}: sha256 of {file.name} is {actual} ({size:,} bytes) but {file.sha256} was expected; "
            "it was removed: upstream changed it, or something altered it on the way",
        )


def _restart(part: IO[bytes]) -> None:
    part.seek(0, io.SEEK_SET)
    part.truncate()
    _validator_of(part).unlink(missing_ok=True)


def _tag_in(validator: Path) -> str | None:
    """Return the server's tag in a file; None if the file was damaged or altered."""
    try:
        tag = validator.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return None
    return tag if tag.isprintable() else None


def _validator_of(part: IO[bytes]) -> Path:
    """Return the file of the server's ETag (or date), so that a resume never mixes two versions."""
    return Path(f"{part.name}.validator")
