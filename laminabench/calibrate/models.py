"""Generated models that the engine is measured with: 246 million parameters of LLaMA's shape, and 73
million of Qwen3-MoE's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import transformers

from lamina.fhbn import ChannelError
from lamina.kv import ArenaError
from lamina.serve import EngineError, RequestError
from laminabench.catalog.find_model import to_hf_config
from laminabench.util.errors import UserError

MODEL = "llama-mini"
MOE = "moe-mini"
LONGEST_TEXT = 65536


def mini_config() -> transformers.PreTrainedConfig:
    return config_of(MODEL)


def moe_config() -> transformers.PreTrainedConfig:
    """Return a mixture of 16 experts a layer, of which a token is routed to 2."""
    return transformers.Qwen3MoeConfig(
        hidden_size=512,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=64,
        num_experts=16,
        num_experts_per_tok=2,
        moe_intermediate_size=256,
        vocab_size=32000,
        tie_word_embeddings=True,
        max_position_embeddings=LONGEST_TEXT,
    )


def config_of(name: str) -> transformers.PreTrainedConfig:
    """Return the configuration of a model of the catalogue, as the engine takes it."""
    return transformers.AutoConfig.for_model(**to_hf_config(name, LONGEST_TEXT))


@contextlib.contextmanager
def users_load(what: str) -> Iterator[None]:
    """Convert the engine's refusals to user errors, as the user chose the load."""
    try:
        yield
    except (ArenaError, ChannelError, EngineError, RequestError) as error:
        raise UserError("bench-load-impossible", f"{what}: {error}") from error
