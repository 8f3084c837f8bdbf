"""Connections to one server that are kept for the next request."""

from __future__ import annotations

import asyncio
import resource
import socket
import ssl
from typing import Any

from laminabench.errors import UserError
from laminabench.systems.live.endpoint.address import Address
from laminabench.systems.live.endpoint.wire import Connection

# A server that does not even take a connection for so long is not there.
CONNECT_TIMEOUT_S = 10.0


class NoConnectionError(Exception):
    """There is no way to the server: a word or two that can be counted by, and what the system said."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind


class Pool:
    """Free connections, the one used last first; a new one where none is free."""

    def __init__(self, address: Address, where: list[Any], tls: ssl.SSLContext | None) -> None:
        self._address, self._where, self._tls = address, where, tls
        self._free: list[Connection] = []
        self._all: set[Connection] = set()
        self.opened = 0

    async def take(self) -> Connection:
        """One that nobody uses."""
        while self._free:
            connection = self._free.pop()
            if connection.reusable:
                return connection
        return await self._connect()

    def give(self, connection: Connection) -> None:
        """Its answer has been read to the end, or it cannot be used any more."""
        if connection.reusable:
            self._free.append(connection)
        else:
            connection.close()

    def close(self) -> None:
        for connection in list(self._all):
            connection.leave("stopped")

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        last: NoConnectionError | None = None
        for host, port in self._where:
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    _, connection = await loop.create_connection(
                        lambda: Connection(self._all.discard),
                        host,
                        port,
                        ssl=self._tls,
                        server_hostname=self._address.host if self._tls else None,
                    )
            except ssl.SSLCertVerificationError as error:
                last = NoConnectionError("certificate refused", error.verify_message)
            except ssl.SSLError as error:
                last = NoConnectionError(
                    "no TLS connection", str(error.reason or error).lower().replace("_", " ")
                )
            except TimeoutError:
                last = NoConnectionError("no connection in time", f"none within {CONNECT_TIMEOUT_S:g} s")
            except OSError as error:
                refused = isinstance(error, ConnectionRefusedError)
                kind = "connection refused" if refused else "no connection"
                last = NoConnectionError(kind, error.strerror or str(error))
            else:
                self._all.add(connection)
                self.opened += 1
                return connection
        assert last is not None
        raise last


def resolved(address: Address) -> list[Any]:
    """Host and port for each address of the server's name, looked up once: not while requests are due."""
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise UserError(
            "endpoint-unknown-host",
            f"--url {address}: {address.host} is no known host ({error.strerror or error})",
        ) from None
    return list(dict.fromkeys(entry[4][:2] for entry in found))


def more_files() -> None:
    """As many connections as this process may ever have: the limit that is in force mostly allows 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
