"""The original model with its weights: from a folder of safetensors, or made up."""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch

from lamina.model.checkpoint import CheckpointError, require_sound

if TYPE_CHECKING:
    import transformers

LoadFormat = Literal["safetensors", "dummy"]
DUMMY_SEED = 0


def load_original(
    config: Any, folder: Path | None, dtype: torch.dtype, load_format: LoadFormat
) -> transformers.PreTrainedModel:
    """The model that transformers would run, on the CPU, ready for inference.

    `dummy` gives every weight the values that the family starts training from: of the right size and scale,
    and the same every time.
    """
    if load_format not in get_args(LoadFormat):
        known = " or ".join(f'"{name}"' for name in get_args(LoadFormat))
        raise CheckpointError(
            "checkpoint-load-format", f"load_format={load_format!r} is unknown: give {known}"
        )
    if load_format == "dummy":
        return _dummy(config, dtype)
    if folder is None:
        raise CheckpointError(
            "checkpoint-config-alone",
            'a config alone has no weights: give a folder with them, or load_format="dummy"',
        )
    import transformers

    require_sound(folder, getattr(config, "transformers_weights", None))
    with _quiet():
        try:
            model, report = transformers.AutoModelForCausalLM.from_pretrained(
                folder,
                config=config,
                dtype=dtype,
                use_safetensors=True,
                local_files_only=True,
                trust_remote_code=False,
                # Listed in the report, and refused below.
                ignore_mismatched_sizes=True,
                output_loading_info=True,
            )
        except Exception as error:
            # A damaged folder can make transformers raise anything.
            raise CheckpointError(
                "checkpoint-unloadable",
                f"{folder}: transformers cannot load it ({_first_line(error)}); fetch it again",
            ) from error
    _require_complete(folder, report)
    return _ready(model)


def _require_complete(folder: Path, report: Mapping[str, Iterable[Any]]) -> None:
    """transformers makes up what a checkpoint lacks; a served model must not be made up."""
    mismatched = sorted(
        str(entry[0] if isinstance(entry, tuple) else entry) for entry in report["mismatched_keys"]
    )
    if mismatched:
        raise CheckpointError(
            "checkpoint-weight-shape",
            f"{folder}: '{mismatched[0]}' has another shape than config.json says; "
            "one of the two is not this model's",
        )
    missing = sorted(report["missing_keys"])
    if missing:
        raise CheckpointError(
            "checkpoint-weight-missing",
            f"{folder}: has no weights for '{missing[0]}' ({len(missing)} missing); fetch it again",
        )


def _dummy(config: Any, dtype: torch.dtype) -> transformers.PreTrainedModel:
    import transformers

    with _quiet(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(DUMMY_SEED)
        return _ready(transformers.AutoModelForCausalLM.from_config(config, dtype=dtype))


def _ready(model: transformers.PreTrainedModel) -> transformers.PreTrainedModel:
    model.eval()
    model.requires_grad_(False)
    return model


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep transformers' bars and reports off the terminal: what matters in them becomes one sentence."""
    import transformers

    logger = logging.getLogger("transformers")
    level = logger.level
    bars = transformers.utils.logging.is_progress_bar_enabled()
    logger.setLevel(logging.CRITICAL)
    transformers.utils.logging.disable_progress_bar()
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logger.setLevel(level)
        if bars:
            transformers.utils.logging.enable_progress_bar()


def _first_line(error: BaseException) -> str:
    """An error by its kind too: some, like KeyError, say little else."""
    line = str(error).strip().split("\n", 1)[0]
    return f"{type(error).__name__}: {line}" if line else type(error).__name__
