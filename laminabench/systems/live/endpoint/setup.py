"""The settings of a replay against a server, before anything is sent: its address, and how to ask it.

A URL, a key or a header that makes no sense is refused with a sentence; none of them is shown in it.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import msgspec

from laminabench.catalog.deployment import Deployment, DeploymentFacts
from laminabench.util import safe_parse
from laminabench.util.errors import UserError
from laminabench.util.redact import SHORTEST, Secret

Api = Literal["completions", "chat"]
# In flight at once where nothing else limits it: as many as vLLM runs together by default.
CONNECTIONS = 256
TIMEOUT_S, FIRST_BYTE_TIMEOUT_S = 600.0, 120.0
RETRIES = 3
WARM_UP = 2
_PORTS = {"http": 80, "https": 443}
KEYS = ("LAMINABENCH_API_KEY", "OPENAI_API_KEY")
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
# What the client has to say itself.
_OURS = ("host", "content-length", "transfer-encoding", "content-type", "connection", "accept")


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
        """The host and port, as in a request's Host field."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def loopback(self) -> bool:
        """Whether it is this machine; names are not resolved."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.path}"


@dataclass(frozen=True, slots=True)
class Served:
    """The model, of which only the server's name for it is known."""

    name: str

    def describe(self) -> dict[str, object]:
        return {"name": self.name}


@dataclass(frozen=True, slots=True)
class Behind:
    """The deployment behind a URL, as far as the user describes it."""

    address: Address | None  # None of a server that another tool measured and does not name
    hardware: Deployment | None = None

    @property
    def usd_per_hour(self) -> float | None:
        return self.hardware.usd_per_hour if self.hardware else None

    @property
    def power_w(self) -> float | None:
        return self.hardware.power_w if self.hardware else None

    def describe(self) -> DeploymentFacts:
        unknown = DeploymentFacts(name="", usd_per_hour=None, devices=[], price_note="")
        facts = self.hardware.describe() if self.hardware else unknown
        return msgspec.structs.replace(facts, name=str(self), url=str(self.address or ""))

    def __str__(self) -> str:
        if self.address is None:
            return str(self.hardware or "unknown server")
        return f"{self.hardware} at {self.address}" if self.hardware else str(self.address)


@dataclass(frozen=True, slots=True, repr=False)
class EndpointSetup:
    """The user's choices."""

    deployment: Behind
    model: Served
    api: Api = "completions"
    fields: tuple[tuple[str, Secret], ...] = ()  # of every request's head, the key's among them
    tokenizer: str | None = None
    vocab: int | None = None
    timeout: float = TIMEOUT_S
    first_byte_timeout: float = FIRST_BYTE_TIMEOUT_S
    retries: int = RETRIES
    warm_up: int = WARM_UP
    connections: int | None = None
    client_workers: int = 1

    @property
    def address(self) -> Address:
        assert self.deployment.address is not None
        return self.deployment.address

    def hidden(self, text: str) -> str:
        """Return a text without the user's header values: a server may quote them."""
        for _, field in self.fields:
            value = field.revealed()
            for secret in (value, value.rpartition(" ")[2]):
                text = text.replace(secret, "***") if len(secret) >= SHORTEST else text
        return text

    @property
    def path(self) -> str:
        return "/v1/chat/completions" if self.api == "chat" else "/v1/completions"


SETUP = EndpointSetup


def parse_url(text: str) -> Address:
    """Parse the URL of a server, with or without the /v1 that clients call the base of an API."""
    shown = _without_secrets(text)

    def wrong(why: str) -> UserError:
        return UserError("endpoint-url", f"--url {shown}: {why}; write it as http://127.0.0.1:8000")

    try:
        parts = urlsplit(text.strip())
        port = parts.port
    except ValueError as error:
        raise wrong(str(error)) from None
    if parts.scheme not in _PORTS:
        raise wrong("this speaks http and https only")
    if not parts.hostname:
        raise wrong("there is no host in it")
    if parts.username is not None or parts.password is not None:
        raise UserError(
            "endpoint-url",
            "--url: a name or password in a URL ends up in logs; give the key by --api-key-file or "
            "LAMINABENCH_API_KEY",
        )
    if parts.query or parts.fragment:
        raise wrong("leave out what follows the path")
    if port == 0:
        raise wrong("no server listens on port 0")
    if any(character <= " " or character > "~" for character in parts.hostname + parts.path):
        raise wrong("there are characters in it that no URL has")
    path = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
    return Address(parts.scheme, parts.hostname, _PORTS[parts.scheme] if port is None else port, path)


def _without_secrets(text: str) -> str:
    """Return a URL for messages: nothing before an @, and nothing after a ?."""
    scheme, slashes, rest = text.strip().partition("://")
    shown = f"{scheme}{slashes}{rest.rpartition('@')[2]}" if slashes else scheme.rpartition("@")[2]
    return shown.partition("?")[0]


def fields_of(headers: Sequence[Secret], key_file: str | None) -> tuple[tuple[str, Secret], ...]:
    """Return the header fields of a request, with the key as the field that servers expect."""
    fields = tuple(_field(header) for header in headers)
    if any(name.lower() == "authorization" for name, _ in fields):
        if key_file is not None:
            raise UserError(
                "endpoint-header", "--header Authorization and --api-key-file contradict each other"
            )
        return fields
    key = _key(key_file)
    return fields if key is None else (*fields, ("Authorization", Secret(f"Bearer {key}")))


def _field(header: Secret) -> tuple[str, Secret]:
    name, colon, value = header.revealed().partition(":")
    name, value = name.strip(), value.strip()
    if not colon or not _NAME.fullmatch(name):
        raise UserError("endpoint-header", "--header: write it as 'Name: value'")
    if not _printable(value):
        raise UserError(
            "endpoint-header", f"--header {name}: there are characters in its value that no header has"
        )
    if name.lower() in _OURS:
        raise UserError("endpoint-header", f"--header {name}: the client sets it itself; leave it out")
    return name, Secret(value)


def _key(file: str | None) -> str | None:
    """Read the key from the file, or else the environment; no error shows its content."""
    where, text = _key_source(file)
    if text is None:
        return None
    key = text.strip()
    if not key or not _printable(key) or " " in key:
        raise UserError(
            "api-key-invalid", f"{where}: there is no key in it; it is one line of printable characters"
        )
    return key


def _key_source(file: str | None) -> tuple[str, str | None]:
    if file is not None:
        try:
            return f"--api-key-file {file}", safe_parse.text(Path(file))
        except OSError as error:
            raise UserError("api-key-unreadable", f"--api-key-file {file}: {error.strerror}") from error
        except UnicodeDecodeError:
            raise UserError("api-key-invalid", f"--api-key-file {file}: it is not text") from None
    return next(((name, os.environ[name]) for name in KEYS if os.environ.get(name)), ("", None))


def _printable(text: str) -> bool:
    return all(" " <= character <= "~" for character in text)
