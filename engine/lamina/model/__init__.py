"""The model worker: weights, the slices between attention operators for prompts, the choice of tokens."""

from lamina.model.load import CheckpointError, load_original
from lamina.model.prefill import Prefill, PromptRun, Some

__all__ = ["CheckpointError", "Prefill", "PromptRun", "Some", "load_original"]
