"""The probe of a server before the clock starts: its models, the fields it takes, how it counts."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from laminabench.systems.live.endpoint.attempts import Attempts
from laminabench.systems.live.endpoint.prompts import Prompts
from laminabench.systems.live.endpoint.records import Records
from laminabench.systems.live.endpoint.request import OPTIONAL, Accepted, Prompt, request
from laminabench.systems.live.endpoint.setup import EndpointSetup
from laminabench.systems.live.endpoint.sse import MALFORMED, CountedBy, Stream
from laminabench.systems.live.endpoint.wire import NoConnectionError, Pool
from laminabench.util.errors import UserError
from laminabench.util.suggest import nearest

PROMPT_TOKENS, OUTPUT_TOKENS = 16, 4
_REFUSED = (400, 422)


@dataclass(frozen=True, slots=True)
class Probed:
    """The fields and prompts that the server accepts."""

    accepted: Accepted
    left_out: tuple[str, ...]  # fields that the server refuses
    counted_by: CountedBy | None  # how the tokens of a chunk are known
    added_tokens: int  # of a prompt, counted by the server but not sent; 0 if it does not count
    counts: bool  # it says how long prompts are
    listed: bool  # it says which models it has

    def describe(self) -> dict[str, object]:
        return {
            "left_out": list(self.left_out),
            "limit": self.accepted.limit,
            "tokens_in_chunks_by": self.counted_by,
            "added_prompt_tokens": self.added_tokens,
            "lists_models": self.listed,
        }


# Of what a server says of itself, so much is stored.
_LONGEST_NAME = 100


class _Model(msgspec.Struct):
    id: str
    root: str | None = None
    owned_by: str | None = None


class _Version(msgspec.Struct):
    version: str = ""


class _Models(msgspec.Struct):
    data: list[_Model]


@dataclass(slots=True)
class Probe:
    """A probe that asks the server one thing after the other."""

    setup: EndpointSetup
    pool: Pool

    async def model(self) -> tuple[bool, str, str]:
        """Return whether the server lists models, the model's root and its owner; a UserError without it."""
        stream = await self._send(request(self.setup, "/v1/models"))
        if stream.status in (401, 403):
            raise UserError("endpoint-refused", self._refused(stream))
        try:
            known = msgspec.json.decode(stream.plain, type=_Models).data if stream.status == 200 else None
        except MALFORMED:
            known = None
        if known is None:
            return False, "", ""
        name = self.setup.model.name
        for one in known:
            if one.id == name:
                return True, one.root or "", (one.owned_by or "")[:_LONGEST_NAME]
        names = [one.id for one in known]
        raise UserError(
            "endpoint-no-model", f"{self.setup.address} has no model {name!r}; {nearest(name, names)}"
        )

    async def version(self) -> str:
        """Return the server's version; "" if it does not say one."""
        stream = await self._send(request(self.setup, "/version"))
        try:
            stated = msgspec.json.decode(stream.plain, type=_Version) if stream.status == 200 else _Version()
        except MALFORMED:
            return ""
        return stated.version[:_LONGEST_NAME]

    async def fields(self, prompt: Prompt) -> tuple[Accepted, Stream]:
        """Find the fields that the server accepts, leaving out those that it rejects one by one."""
        accepted = Accepted()
        while True:
            body = accepted.body(self.setup, prompt, OUTPUT_TOKENS)
            stream = await self._send(request(self.setup, self.setup.path, body))
            if not stream.error:
                return accepted, stream
            fewer = _fewer(accepted, self._message(stream)) if stream.status in _REFUSED else None
            if fewer is None:
                raise UserError("endpoint-refused", self._refused(stream))
            accepted = fewer

    async def warm_up(self, accepted: Accepted, prompts: Prompts, lengths: list[int]) -> list[str]:
        """Send uncounted requests, all at once; return the errors."""
        bodies = [
            accepted.body(self.setup, prompts.warm_up(number + 1, length), OUTPUT_TOKENS)
            for number, length in enumerate(lengths)
        ]
        streams = await asyncio.gather(*(self._send(request(self.setup, self.setup.path, b)) for b in bodies))
        return [self._message(stream) for stream in streams if stream.error]

    async def _send(self, sent: bytes) -> Stream:
        """Send one request, without another attempt."""
        setup = self.setup
        records = Records(np.zeros(1, np.int64))
        attempts = Attempts(self.pool, records, setup.timeout, setup.first_byte_timeout, retries=0)
        try:
            return await attempts.once(sent)
        except NoConnectionError as error:
            raise UserError("endpoint-unreachable", f"{setup.address}: {error.kind} ({error})") from None

    def _message(self, stream: Stream) -> str:
        """Return the server's reason for an error on one line, shortened and without secrets."""
        # Before it is cut: half a secret would not match.
        text = self.setup.hidden(_reason(stream))[:300]
        return f"{stream.error}: {text}" if text else stream.error

    def _refused(self, stream: Stream) -> str:
        message, setup = self._message(stream), self.setup
        where = f"{setup.address}{setup.path}"
        if stream.status in (401, 403):
            how = "give it by --api-key-file or LAMINABENCH_API_KEY"
            return f"{where} wants a key, or another one ({message}); {how}"
        if stream.status in _REFUSED and setup.tokenizer is None:
            return (
                f"{where} does not take a prompt of token ids: {message}; for other numbers, give --vocab; "
                "if it wants text, --tokenizer"
            )
        return f"{where} did not answer the first request: {message}"


async def probed(probe: Probe, prompts: Prompts, *, listed: bool) -> Probed:
    """Request a few tokens after a prompt of a known length."""
    accepted, stream = await probe.fields(prompts.warm_up(0, PROMPT_TOKENS))
    left_out = tuple(name for name in OPTIONAL if name not in accepted.fields)
    if stream.counted_by == "usage":
        # They say more and cost the network less.
        accepted = accepted.without("return_token_ids")
    counts = stream.prompt_counted >= 0
    added = stream.prompt_counted - PROMPT_TOKENS if counts else 0
    return Probed(accepted, left_out, stream.counted_by, added, counts, listed)


def _reason(stream: Stream) -> str:
    """Return the server's reason for an error, on one line."""
    text = stream.plain.decode("utf-8", "replace")
    try:
        document = msgspec.json.decode(stream.plain)
        error = document.get("error", document)
        text = (
            str(error.get("message") or error.get("detail") or error)
            if isinstance(error, dict)
            else str(error)
        )
        if isinstance(error, dict) and error.get("param"):
            text += f" ({error['param']})"
    except (*MALFORMED, AttributeError):
        pass
    return " ".join(text.split())


def _fewer(accepted: Accepted, message: str) -> Accepted | None:
    """Return the fields less those the server has named; None if it has named none that can be left out."""
    if accepted.limit == "max_tokens" and "max_completion_tokens" in message:
        return replace(accepted, limit="max_completion_tokens")
    named = [name for name in OPTIONAL if name in message and name in accepted.fields]
    if named:
        return accepted.without(*named)
    if "stream_options" in message:
        usage = [name for name in OPTIONAL[:2] if name in accepted.fields]
        return accepted.without(usage[0]) if usage else None
    return None
