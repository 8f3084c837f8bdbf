"""What comes of an iteration."""

from __future__ import annotations

from dataclasses import dataclass, field

from lamina.pipeline.batch_rows import Choice


@dataclass
class Spent:
    """Where the time of an iteration went, in seconds; none of it is the caller's own work."""

    prefill_s: float = 0.0
    model_s: float = 0.0
    attention_s: float = 0.0
    sampling_s: float = 0.0
    waited_s: float = 0.0  # for workers elsewhere, which did all this meanwhile

    @property
    def elsewhere_s(self) -> float:
        """What the caller's thread did not spend on its own work."""
        return self.prefill_s + self.model_s + self.attention_s + self.sampling_s + self.waited_s


@dataclass
class Landed:
    """An iteration's tokens."""

    choice: Choice
    spent: Spent
    ended_s: float  # time.monotonic() when the tokens were there
    failed: dict[int, str] = field(default_factory=dict)  # sequences whose prompt could not be computed
