"""The model that the engine is measured with: 246 million parameters of LLaMA's shape, made up."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import transformers

from lamina.fhbn import ChannelError
from lamina.kv import ArenaError
from lamina.serve import EngineError, RequestError
from laminabench.catalog.find_model import to_hf_config
from laminabench.errors import UserError

MODEL = "llama-mini"
LONGEST_TEXT = 65536


def mini_config() -> transformers.PreTrainedConfig:
    return config_of(MODEL)


def config_of(name: str) -> transformers.PreTrainedConfig:
    """Of a model of the catalogue, as the engine takes it."""
    return transformers.AutoConfig.for_model(**to_hf_config(name, LONGEST_TEXT))


@contextlib.contextmanager
def users_load(what: str) -> Iterator[None]:
    """Turn what the engine refuses into the user's error: the load is of their choice."""
    try:
        yield
    except (ArenaError, ChannelError, EngineError, RequestError) as error:
        raise UserError("bench-load-impossible", f"{what}: {error}") from error
