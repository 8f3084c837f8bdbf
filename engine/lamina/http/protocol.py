"""HTTP as it comes from the network: uvicorn's, with errors in the API's format and limits of its own."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from lamina.http.errors import ApiError
from lamina.http.guard import LINGER_S
from lamina.http.service import Limits

# A request line and headers; more is abuse.
MOST_HEADER_BYTES = 65_536


def protocol(limits: Limits) -> type[HttpToolsProtocol]:
    """A class of connections, each within these limits."""

    class Connection(HttpToolsProtocol):
        """One connection."""

        _slow: asyncio.TimerHandle | None = None
        _refused = False
        _in_header = True
        _header_bytes = 0  # of a request whose header is not whole

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            if len(self.connections) > limits.most_connections:
                self._refuse(ApiError(503, "too many connections are open: try later", code="connections"))
                return
            self._expect()

        def connection_lost(self, exc: Exception | None) -> None:
            self._at_ease()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            if self._refused or self.parser is None or self.transport.is_closing():
                return
            if self._in_header:
                self._header_bytes += len(data)
            super().data_received(data)
            too_long = self._in_header and self._header_bytes > MOST_HEADER_BYTES
            if too_long and not self.transport.is_closing():
                self._refuse(
                    ApiError(431, f"the header is longer than {MOST_HEADER_BYTES:,} bytes", code="header")
                )

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self.scope["state"]["abort"] = self.transport.abort
            self._in_header, self._header_bytes = True, 0
            self._expect()

        def on_headers_complete(self) -> None:
            self._in_header = False
            super().on_headers_complete()

        def on_message_complete(self) -> None:
            super().on_message_complete()
            self._at_ease()

        def _expect(self) -> None:
            """A whole request within the limit."""
            self._at_ease()
            self._slow = self.loop.call_later(limits.client_s, self._too_slow)

        def _at_ease(self) -> None:
            if self._slow:
                self._slow.cancel()
                self._slow = None

        def _too_slow(self) -> None:
            if self.cycle and not self.cycle.response_complete:
                self.transport.abort()  # in the middle of a body: its reader is notified
            elif not self.transport.is_closing():
                why = f"no whole request has come in {limits.client_s:g} s"
                self._refuse(ApiError(408, why, code="too_slow"))

        def send_400_response(self, msg: str) -> None:
            """Called where a request cannot be read."""
            self._refuse(ApiError(400, msg, code="not_http"))

        def _refuse(self, error: ApiError) -> None:
            self._at_ease()
            if self.cycle and not self.cycle.response_complete:
                if self.cycle.response_started:
                    self.transport.abort()  # in the middle of an answer there is no room for another
                    return
                # The reader of this request's body is notified that the client is gone, and does not answer.
                self.cycle.disconnected = True
                self.cycle.message_event.set()
            body = error.body()
            self._refused = True
            self.transport.write(
                STATUS_LINE[error.status]
                + b"content-type: application/json\r\nconnection: close\r\n"
                + b"content-length: %d\r\n\r\n" % len(body)
                + body
            )
            # What still comes is thrown away for a moment: closed with something unread, a connection is
            # reset, and the client might never get to read why.
            if self.transport.can_write_eof():
                self.transport.write_eof()
            self._slow = self.loop.call_later(LINGER_S, self.transport.close)

    return Connection
