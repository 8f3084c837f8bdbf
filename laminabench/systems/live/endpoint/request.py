"""The bytes of a request: its head, and a body with the fields that the server accepts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import msgspec

from laminabench.systems.live.endpoint.setup import EndpointSetup
from laminabench.util.version import __version__

Prompt = Sequence[int] | str
# Fields that show how tokens came, or hold the server to the trace's lengths; not every server knows them.
OPTIONAL = (
    "continuous_usage_stats",
    "include_usage",
    "return_token_ids",
    "min_tokens",
    "ignore_eos",
    "temperature",
)
Limit = Literal["max_tokens", "max_completion_tokens"]


@dataclass(frozen=True, slots=True)
class Accepted:
    """The fields of a request that the server accepts."""

    fields: frozenset[str] = frozenset(OPTIONAL)
    limit: Limit = "max_tokens"

    def without(self, *names: str) -> Accepted:
        return replace(self, fields=self.fields - set(names))

    def body(self, setup: EndpointSetup, prompt: Prompt, tokens: int) -> bytes:
        """Return a request's body: so many tokens after this prompt."""
        fields: dict[str, object] = {"model": setup.model.name, "stream": True, self.limit: tokens}
        if setup.api == "chat":
            fields["messages"] = [{"role": "user", "content": prompt}]
        else:
            fields["prompt"] = prompt
        usage = {name: True for name in ("include_usage", "continuous_usage_stats") if name in self.fields}
        if usage:
            fields["stream_options"] = usage
        values = {"min_tokens": tokens, "ignore_eos": True, "return_token_ids": True, "temperature": 0}
        fields |= {name: value for name, value in values.items() if name in self.fields}
        return msgspec.json.encode(fields)


def request(setup: EndpointSetup, path: str, body: bytes | None = None) -> bytes:
    """Return a POST of the body, or a GET without one."""
    address = setup.address
    lines = [
        f"{'GET' if body is None else 'POST'} {address.path}{path} HTTP/1.1",
        f"Host: {address.authority}",
        f"User-Agent: laminabench/{__version__}",
        *(f"{name}: {value.revealed()}" for name, value in setup.fields),
    ]
    if body is not None:
        lines += [
            "Accept: text/event-stream",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
        ]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b"")
