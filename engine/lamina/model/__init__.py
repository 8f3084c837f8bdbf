"""The model worker: weights, prefill and sampling."""

from lamina.model.load import CheckpointError, load_original
from lamina.model.prefill import Prefill, PromptRun, PromptTokens

__all__ = ["CheckpointError", "Prefill", "PromptRun", "PromptTokens", "load_original"]
