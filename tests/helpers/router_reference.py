"""csrc/core/router.hpp as slow, obvious Python; docs/simulator.md ("Several instances") defines it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

Own = Callable[..., int]


@dataclass
class RouterReference:
    """A router over instances of (KV tokens, most requests); requests take `extra` more tokens in each."""

    router: str | Own
    instances: Sequence[tuple[int, int]]
    global_queue: bool = False
    extra: Sequence[int] = ()
    requests: list[int] = field(init=False)
    kv_tokens: list[int] = field(init=False)
    closed: set[int] = field(init=False, default_factory=set)
    turn: int = field(init=False, default=0)
    last_sent: dict[int, int] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.requests = [0] * len(self.instances)
        self.kv_tokens = [0] * len(self.instances)
        self.extra = self.extra or [0] * len(self.instances)

    def route(
        self, prompt: int, output: int, prefix: Sequence[int] = (), block_tokens: int = 512
    ) -> int | None:
        tokens = prompt + output
        takers = [i for i in range(len(self.instances)) if self.takes(i, tokens)]
        if callable(self.router):
            requested = self.router(prompt, output, prefix, list(self.requests), list(self.kv_tokens))
            assert 0 <= requested < len(self.instances)
            instead = self.idlest(takers) if requested in self.closed else None
            chosen = requested if requested in takers else instead
        elif not takers:
            chosen = None
        elif self.router == "round-robin":
            count = len(self.instances)
            chosen = next(i % count for i in range(self.turn, self.turn + count) if i % count in takers)
            self.turn = chosen + 1
        elif self.router == "least-requests":
            chosen = self.idlest(takers)
        elif self.router == "least-kv":
            chosen = self.emptiest(takers, tokens)
        elif self.router == "fit":
            fitting = [i for i in takers if self.needs(i, tokens) <= self.instances[i][0]]
            by_size = sorted(fitting, key=lambda i: (self.instances[i][0], self.kv_tokens[i], i))
            chosen = by_size[0] if by_size else self.emptiest(takers, tokens)
        else:
            chosen = self.with_prefix(takers, prompt, prefix, block_tokens)
        if chosen is not None:
            self.requests[chosen] += 1
            self.kv_tokens[chosen] = self.needs(chosen, tokens)
            self.last_sent |= dict.fromkeys(prefix, chosen)
        return chosen

    def left(self, instance: int, prompt: int, output: int) -> None:
        self.requests[instance] -= 1
        self.kv_tokens[instance] -= prompt + output + self.extra[instance]

    def needs(self, i: int, tokens: int) -> int:
        """Return the tokens that an instance's requests and one of this size may need."""
        return self.kv_tokens[i] + tokens + self.extra[i]

    def takes(self, i: int, tokens: int) -> bool:
        if i in self.closed:
            return False
        room, most = self.instances[i]
        alone = not self.global_queue or self.requests[i] == 0
        return alone or (self.requests[i] < most and self.needs(i, tokens) <= room)

    def idlest(self, takers: Sequence[int]) -> int | None:
        return min(takers, key=lambda i: (self.requests[i], i), default=None)

    def emptiest(self, takers: Sequence[int], tokens: int) -> int:
        return min(takers, key=lambda i: (self.needs(i, tokens) / self.instances[i][0], i))

    def with_prefix(
        self, takers: Sequence[int], prompt: int, prefix: Sequence[int], block_tokens: int
    ) -> int | None:
        idlest = self.idlest(takers)
        assert idlest is not None
        known = [place for place, block in enumerate(prefix) if block in self.last_sent]
        if not known:
            return idlest
        last = self.last_sent[prefix[known[-1]]]
        fewest = self.requests[idlest]
        ahead = self.requests[last] > fewest + 64 and self.requests[last] > 1.5 * fewest
        worth = (known[-1] + 1) * block_tokens >= 0.3 * prompt
        return last if worth and not ahead and last in takers else idlest
