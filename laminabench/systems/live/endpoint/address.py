"""Where a server is: the URL of a user, read once and refused with a sentence where it makes no sense."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from urllib.parse import urlsplit

from laminabench.errors import UserError

_PORTS = {"http": 80, "https": 443}
_EXAMPLE = "write it as http://127.0.0.1:8000"


@dataclass(frozen=True, slots=True)
class Address:
    """A server: its paths begin with `path`, to which /v1/... is added."""

    scheme: str
    host: str
    port: int
    path: str = ""

    @property
    def secure(self) -> bool:
        return self.scheme == "https"

    @property
    def authority(self) -> str:
        """Host and port, as a request's Host field has them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def loopback(self) -> bool:
        """It is this machine, for whoever reads no names from elsewhere."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.path}"


def parse_url(text: str) -> Address:
    """The server of a URL, with or without the /v1 that clients call the base of an API."""
    try:
        parts = urlsplit(text.strip())
        port = parts.port
    except ValueError as error:
        raise UserError("endpoint-url", f"--url {_without_secrets(text)}: {error}; {_EXAMPLE}") from None
    shown = _without_secrets(text)
    if parts.scheme not in _PORTS:
        raise UserError("endpoint-url", f"--url {shown}: this speaks http and https only; {_EXAMPLE}")
    if not parts.hostname:
        raise UserError("endpoint-url", f"--url {shown}: there is no host in it; {_EXAMPLE}")
    if parts.username is not None or parts.password is not None:
        raise UserError(
            "endpoint-url",
            "--url: a name or password in a URL ends up in logs; give the key by --api-key-file or "
            "LAMINABENCH_API_KEY",
        )
    if parts.query or parts.fragment:
        raise UserError("endpoint-url", f"--url {shown}: leave out what follows the path; {_EXAMPLE}")
    if port == 0:
        raise UserError("endpoint-url", f"--url {shown}: nobody listens on port 0; {_EXAMPLE}")
    if any(character <= " " or character > "~" for character in parts.hostname + parts.path):
        raise UserError(
            "endpoint-url", f"--url {shown}: there are characters in it that no URL has; {_EXAMPLE}"
        )
    path = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
    return Address(parts.scheme, parts.hostname, _PORTS[parts.scheme] if port is None else port, path)


def _without_secrets(text: str) -> str:
    """For a sentence: nothing before an @, and nothing after a ?."""
    scheme, slashes, rest = text.strip().partition("://")
    shown = f"{scheme}{slashes}{rest.rpartition('@')[2]}" if slashes else scheme.rpartition("@")[2]
    return shown.partition("?")[0]
