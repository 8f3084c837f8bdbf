"""Near ties: of two tokens that are equally likely but for rounding, the batch decides which is chosen."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import transformers

# Of 20,000 tokens of a small model with made-up weights one or two are nearer than 1e-6 to the next likely,
# and products of a batch of another size are that far apart in float32.
NEAR = 1e-5


def likeliest(model: str, prompt: Sequence[int], tokens: Sequence[int]) -> bool:
    """Return whether each token is the likeliest after those before it, up to rounding."""
    import torch

    with torch.inference_mode():
        scores = _original(model)(torch.tensor([[*prompt, *tokens]])).logits[0, len(prompt) - 1 : -1]
        made = scores.gather(1, torch.tensor(tokens)[:, None])[:, 0]
        return bool((scores.amax(1) - made <= NEAR).all())


@functools.lru_cache(1)
def _original(model: str) -> transformers.PreTrainedModel:
    """Return the logits that transformers computes in float64."""
    import torch

    from lamina.model.load import load_original
    from laminabench.calibrate.models import config_of

    return load_original(config_of(model), None, torch.float32, "dummy").double()
