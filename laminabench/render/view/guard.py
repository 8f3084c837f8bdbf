"""Access control of every page: host names, one-time link, cookie and address length."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

from starlette.requests import cookie_parser

from laminabench.render.html import document, tag

Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Any, Any, Any], Awaitable[None]]

# Fits a hundred Runs of long names; connections limit request line and headers to 64 KiB.
MOST_ADDRESS = 48_000
# Scripts of our own and plotly's only, nothing inline; styles are inline in charts and markup.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src data: blob: 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
# For pages that declare it: the scripts that may run may also create functions from text.
EVALUATING = POLICY.replace("script-src 'self'", "script-src 'self' 'unsafe-eval'")
HEADERS = {
    "content-security-policy": POLICY,
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class Guard:
    """An ASGI wrapper that admits one browser by a one-time link, and then by its cookie."""

    def __init__(self, app: App, port: int) -> None:
        self._app = app
        # Cookies are shared by all ports of a host, so each explorer needs its own.
        self._cookie = f"laminabench-view-{port}"
        self._session = secrets.token_urlsafe(32)
        self._token: str | None = secrets.token_urlsafe(32)
        self._hosts = {f"{name}:{port}".encode() for name in ("127.0.0.1", "localhost")}
        self.url = f"http://127.0.0.1:{port}/?token={self._token}"

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = {name for name, _ in message["headers"]}
                more = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message["headers"], *(pair for pair in more if pair[0] not in own)]
            await send(message)

        headers = dict(scope["headers"])
        if (refusal := self._refusal(scope, headers)) is not None:
            await _answer(with_headers, *refusal)
        else:
            await self._app(scope, receive, with_headers)

    def _refusal(self, scope: Any, headers: dict[bytes, bytes]) -> tuple[int, str, dict[str, str]] | None:
        """Return the status, page and headers of a refused request; None if it is admitted."""
        # DNS rebinding: a foreign host name that resolves to this address is refused.
        if headers.get(b"host", b"") not in self._hosts:
            return 403, "This explorer answers to 127.0.0.1 and localhost only.", {}
        if scope["method"] != "GET":
            return 405, "Pages are only read here: use GET.", {"allow": "GET"}
        raw: bytes = scope["query_string"]
        if len(raw) + len(scope["path"]) > MOST_ADDRESS:
            return 414, f"The address is longer than {MOST_ADDRESS:,} characters: select fewer Runs.", {}
        let_in = self._knows(headers)
        query = parse_qsl(raw.decode("latin-1"), keep_blank_values=True) if b"token=" in raw else []
        if given := [value for name, value in query if name == "token"]:
            fresh = self._token is not None and hmac.compare_digest(given[0].encode(), self._token.encode())
            if fresh:
                self._token = None
            if fresh or let_in:
                return self._welcome(scope["path"], [pair for pair in query if pair[0] != "token"])
            return (
                403,
                "This link was used before, or is of another explorer: start `laminabench view` anew.",
                {},
            )
        if not let_in:
            return 403, "Open the link that `laminabench view` printed: it lets this browser in, once.", {}
        return None

    def _knows(self, headers: dict[bytes, bytes]) -> bool:
        # Parsed as browsers do: other servers of this host may have set cookies of any form.
        given = cookie_parser(headers.get(b"cookie", b"").decode("latin-1")).get(self._cookie, "")
        return hmac.compare_digest(given.encode(), self._session.encode())

    def _welcome(self, path: str, query: list[tuple[str, str]]) -> tuple[int, str, dict[str, str]]:
        """Return a page that forwards to the same address without the token.

        Not a redirect: after another site's link a browser would not send a strict cookie with it.
        """
        address = quote(path) + (f"?{urlencode(query)}" if query else "")
        # Two leading slashes would name another host.
        address = "/" + address.lstrip("/")
        cookie = f"{self._cookie}={self._session}; Path=/; HttpOnly; SameSite=Strict"
        return 200, address, {"set-cookie": cookie, "cache-control": "no-store"}


async def _answer(send: Send, status: int, text: str, headers: dict[str, str]) -> None:
    icon = tag("link", rel="icon", href="data:,")
    onward = tag("meta", http_equiv="refresh", content=f"0;url={text}") if status == 200 else ""
    body = tag("p", tag("a", "Go on", href=text) if status == 200 else text)
    page = document("laminabench", tag("main", tag("h1", "laminabench"), body), head=(icon, onward))
    written = page.encode()
    sent = {"content-type": "text/html; charset=utf-8", "content-length": str(len(written)), **headers}
    pairs = [(name.encode(), value.encode()) for name, value in sent.items()]
    await send({"type": "http.response.start", "status": status, "headers": pairs})
    await send({"type": "http.response.body", "body": written})
