"""Loading of the original model, from a checked folder of safetensors or with random weights."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from lamina.errors import CodedError

if TYPE_CHECKING:
    import transformers

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
ADAPTER = "adapter_config.json"
# Names of the number formats in safetensors that slices support.
DTYPES = ("F64", "F32", "F16", "BF16")
# What safetensors says of a file that is shorter or longer than its header says.
_CUT_OFF = re.compile("too ?small|header ?length|incomplete", re.IGNORECASE)
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
# The longest header that safetensors reads; also the limit of an index.
MOST_HEADER_BYTES = 100_000_000


class CheckpointError(CodedError, ValueError):
    """Weights cannot be loaded; the message says which file, why and what to do."""


def require_sound(folder: Path, named: object = None) -> None:
    """Raise CheckpointError unless the folder has complete safetensors files of a supported number format.

    Only their headers are read. Pickled weights are refused: loading them runs whatever is in them.
    `named` is the config's `transformers_weights`, the file that transformers would take before any other.
    """
    try:
        for shard, promised in _shards(folder, _entry(folder, named)).items():
            missing = sorted(promised - _tensors(shard))
            if missing:
                raise CheckpointError(
                    "checkpoint-tensor-not-in-shard",
                    f"{shard}: has no tensor {missing[0]!r}, which {INDEX} says it has; fetch the file again",
                )
    except OSError as error:
        raise CheckpointError(
            "checkpoint-unreadable", f"{folder}: its weights cannot be read ({error}); repair that first"
        ) from error


def _entry(folder: Path, named: object) -> Path:
    """Return the file that transformers opens first, so that what is checked is what is loaded."""
    if (folder / ADAPTER).is_file():
        raise CheckpointError(
            "checkpoint-adapter",
            f"{folder / ADAPTER}: adapters are not supported; merge it into the weights and remove the file",
        )
    single, index = folder / WEIGHTS, folder / INDEX
    entry = index if index.exists() and not single.is_file() else single
    if named is not None and named != entry.name:
        raise CheckpointError(
            "checkpoint-other-weights",
            f"{folder}: config.json has transformers_weights {named!r}, but only {entry.name} is looked for; "
            "remove that line, and give the file this name if its weights are meant",
        )
    return entry


def _shards(folder: Path, entry: Path) -> dict[Path, set[str]]:
    """Return the weight files, each with the tensors that the index lists for it."""
    shards: dict[Path, set[str]] = {}
    if entry.name == INDEX:
        for tensor, file in _weight_map(entry).items():
            shards.setdefault(folder / file, set()).add(tensor)
    else:
        shards[entry] = set()
    absent = sorted(shard.name for shard in shards if not shard.is_file())
    if not absent:
        return shards
    pickles = sorted(path.name for pattern in PICKLES for path in folder.glob(pattern))
    if pickles and entry.name == WEIGHTS:
        raise CheckpointError(
            "checkpoint-pickled",
            f"{folder}: has {pickles[0]} but no {WEIGHTS}; pickled weights can run code and are not loaded: "
            "save the model with safe_serialization=True",
        )
    if len(shards) > 1:
        raise CheckpointError(
            "checkpoint-shard-missing",
            f"{folder}: {absent[0]} is missing ({len(absent)} of {len(shards)} shards are); fetch it again",
        )
    raise CheckpointError(
        "checkpoint-no-weights",
        f'{folder}: has no {absent[0]}; give a folder with safetensors weights, or load_format="dummy"',
    )


def _weight_map(index: Path) -> dict[str, str]:
    """Return the name of each tensor's file, which lies next to the index."""

    def wrong(why: object) -> CheckpointError:
        return CheckpointError(
            "checkpoint-index-damaged", f"{index}: is no index of safetensors ({why}); fetch the file again"
        )

    if not index.is_file():
        raise wrong("it is no file")
    if index.stat().st_size > MOST_HEADER_BYTES:
        raise wrong(f"it is longer than {MOST_HEADER_BYTES:,} bytes")
    try:
        facts = json.loads(index.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise wrong(error) from error
    places = facts.get("weight_map") if isinstance(facts, dict) else None
    if not isinstance(places, dict) or not places:
        raise wrong("it has no weight_map with tensors")
    for tensor, file in places.items():
        # Links are allowed, as in Hugging Face's cache; paths could lead to any file.
        if not isinstance(file, str) or Path(file).name != file or not file.endswith(".safetensors"):
            raise wrong(f"{tensor!r} is in {file!r}, and not in a .safetensors file of this folder")
    return places


def _tensors(shard: Path) -> set[str]:
    """Return the names of a file's tensors; checks that the header is consistent with the file."""
    try:
        with safe_open(shard, framework="pt") as file:
            dtypes = {name: file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        if _CUT_OFF.search(str(error)):
            raise CheckpointError(
                "checkpoint-cut-off", f"{shard}: is cut off or damaged ({error}); fetch it again"
            ) from error
        raise CheckpointError(
            "checkpoint-damaged", f"{shard}: is no safetensors file ({error}); fetch it again"
        ) from error
    for name, dtype in dtypes.items():
        if dtype not in DTYPES:
            raise CheckpointError(
                "checkpoint-dtype",
                f"{shard}: {name!r} is {dtype}; weights must be float32, float16 or bfloat16 "
                "(a quantised model is not supported)",
            )
    return set(dtypes)


LoadFormat = Literal["safetensors", "dummy"]
DUMMY_SEED = 0


def load_original(
    config: Any, folder: Path | None, dtype: torch.dtype, load_format: LoadFormat
) -> transformers.PreTrainedModel:
    """Return transformers' model on the CPU, ready for inference.

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
                # Reported below.
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
    """Raise CheckpointError for missing weights, which transformers would initialise randomly."""
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
        with _drawn_once() as draw_rest:
            model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)
        draw_rest(model)
        return _ready(model)


@contextlib.contextmanager
def _drawn_once() -> Iterator[Callable[[nn.Module], None]]:
    """Avoid drawing weights twice: torch would draw a layer's weights when it is made, and the family draws
    them again, which doubled the time. What is given draws, after that, what the family has left alone.
    """
    draws = {kind: kind.reset_parameters for kind in (nn.Linear, nn.Embedding)}

    def leave(layer: nn.Module) -> None:
        for weights in layer.parameters(recurse=False):
            weights.detach().fill_(math.nan)

    def draw_rest(model: nn.Module) -> None:
        for layer in model.modules():
            for kind, draw in draws.items():
                if isinstance(layer, kind) and any(map(_left, layer.parameters(recurse=False))):
                    draw(layer)  # type: ignore[arg-type]

    try:
        for kind in draws:
            kind.reset_parameters = leave  # type: ignore[assignment,method-assign]
        yield draw_rest
    finally:
        for kind, draw in draws.items():
            kind.reset_parameters = draw  # type: ignore[method-assign]


def _left(weights: torch.Tensor) -> bool:
    return bool(weights.detach().flatten()[:1].isnan().any())


def _ready(model: transformers.PreTrainedModel) -> transformers.PreTrainedModel:
    model.eval()
    model.requires_grad_(False)
    return model


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep transformers' progress bars and reports off the terminal."""
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
    """Return an error's type and first line; some, like KeyError, have little else."""
    line = str(error).strip().split("\n", 1)[0]
    return f"{type(error).__name__}: {line}" if line else type(error).__name__
