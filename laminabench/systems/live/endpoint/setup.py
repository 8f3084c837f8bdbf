"""What a replay against a server is asked to be, before anything is sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from laminabench.catalog.deployment import Deployment
from laminabench.systems.live.endpoint.address import Address

Api = Literal["completions", "chat"]
# In flight at once where nothing else limits it: as many as vLLM runs together by default.
CONNECTIONS = 256
TIMEOUT_S, FIRST_BYTE_TIMEOUT_S = 600.0, 120.0
RETRIES = 3
WARM_UP = 2
# What is shorter is no key, and would be hidden in the middle of words.
SHORTEST_SECRET = 4


@dataclass(frozen=True, slots=True)
class Served:
    """The model, as the server calls it: what else it is nobody here knows."""

    name: str

    def describe(self) -> dict[str, object]:
        return {"name": self.name}


@dataclass(frozen=True, slots=True)
class Behind:
    """What is behind a URL: nothing is known of it but what the user says."""

    address: Address
    hardware: Deployment | None = None

    @property
    def usd_per_hour(self) -> float | None:
        return self.hardware.usd_per_hour if self.hardware else None

    @property
    def power_w(self) -> float | None:
        return self.hardware.power_w if self.hardware else None

    def describe(self) -> dict[str, object]:
        nothing: dict[str, object] = {
            "dop": None,
            "usd_per_hour": None,
            "power_w": None,
            "devices": [],
            "price_note": "",
        }
        known = self.hardware.describe() if self.hardware else nothing
        return {**known, "name": str(self), "url": str(self.address)}

    def __str__(self) -> str:
        return f"{self.hardware} at {self.address}" if self.hardware else str(self.address)


@dataclass(frozen=True, slots=True, repr=False)
class EndpointSetup:
    """The user's choices. It is never printed: `fields` has the key."""

    deployment: Behind
    model: Served
    api: Api = "completions"
    fields: tuple[tuple[str, str], ...] = ()  # of every request's head, the key's among them
    tokenizer: str | None = None
    vocab: int | None = None
    timeout_s: float = TIMEOUT_S
    first_byte_timeout_s: float = FIRST_BYTE_TIMEOUT_S
    retries: int = RETRIES
    warm_up: int = WARM_UP
    connections: int | None = None
    workers: int = 1

    @property
    def address(self) -> Address:
        return self.deployment.address

    def hidden(self, text: str) -> str:
        """Without what the user sends as a field: a server may say it back."""
        for _, value in self.fields:
            for secret in (value, value.rpartition(" ")[2]):
                text = text.replace(secret, "***") if len(secret) >= SHORTEST_SECRET else text
        return text

    @property
    def path(self) -> str:
        return "/v1/chat/completions" if self.api == "chat" else "/v1/completions"
