"""Experts that a checkpoint's own routers choose for real tokens."""

from __future__ import annotations

import hashlib
import inspect
import json
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lamina.convert import ConversionError
from lamina.convert.source import Source, open_source
from lamina.model import CheckpointError, load_original
from lamina.model.load import INDEX
from laminabench.catalog.entries import Table
from laminabench.catalog.routing import Int64
from laminabench.systems.live.endpoint.prompts import load_tokenizer
from laminabench.util import safe_parse
from laminabench.util.errors import UserError

LONGEST = 8192  # tokens of a sequence; a longer one is cut
# What transformers calls the experts of each token, an argument of the module that computes them.
CHOSEN = ("top_k_index", "router_indices")
_LAYER = re.compile(r"\.(?:layers|h|blocks)\.(\d{1,9})\.")


@dataclass(frozen=True, slots=True)
class Routed:
    """The experts of each token by layer, and the SHA-256 of the routers' weights."""

    model_type: str
    experts: int
    chosen: tuple[Int64, ...]
    routers_sha256: str

    def describe(
        self, folder: Path, prompts: Path, sequences: Sequence[Sequence[int]]
    ) -> tuple[Table, list[str]]:
        """Return what was measured, and the same as a file's comments."""
        tokens, top_k = self.chosen[0].shape
        ids = hashlib.sha256(json.dumps(sequences, separators=(",", ":")).encode()).hexdigest()
        facts: Table = {
            "model": folder.resolve().name,
            "model_type": self.model_type,
            "layers": len(self.chosen),
            "experts": self.experts,
            "top_k": top_k,
            "routers_sha256": self.routers_sha256,
            "prompts": prompts.name,
            "tokens": tokens,
            "token_ids_sha256": ids,
        }
        popularity = [np.bincount(each.ravel(), minlength=self.experts).tolist() for each in self.chosen]
        comments = ["measured by `laminabench costs routing`: the model's own routers on these prompts"]
        comments += [f"{name}: {value}" for name, value in facts.items()]
        comments += [f"tokens by expert, layer {n}: {counts}" for n, counts in enumerate(popularity)]
        return {**facts, "tokens_by_expert": popularity}, comments


def routed(
    folder: Path,
    sequences: Sequence[Sequence[int]],
    layers: int | None = None,
    report: Callable[[int, int | None], None] = lambda _done, _of: None,
) -> Routed:
    """Run the sequences through the first layers of the checkpoint in a folder, or all of them.

    Weights of later layers are not read, and their files need not be there.
    """
    try:
        config, dtype = _first_layers(open_source(folder, None), layers)
        with _needed(folder, layers) as needed:
            model = load_original(config, needed, dtype, "safetensors")
    except (ConversionError, CheckpointError) as error:
        raise UserError(error.code, str(error)) from error
    chosen: dict[str, list[torch.Tensor]] = {}
    experts = 0
    for name, module in model.named_modules():
        places = list(inspect.signature(module.forward).parameters)
        argument = next((each for each in CHOSEN if each in places), None)
        if argument is None:
            continue
        experts = next(module.parameters()).shape[0]
        record = _recorder(chosen.setdefault(name, []), argument, places.index(argument))
        module.register_forward_pre_hook(record, with_kwargs=True)
    if not chosen:
        raise UserError(
            "routing-no-router",
            f"{folder}: no layer of this {config.model_type} is given the experts of its tokens by a router; "
            "give a mixture of experts, and --layers beyond its dense ones",
        )
    most = model.get_input_embeddings().num_embeddings
    for number, each in enumerate(sequences, 1):
        if not 0 <= min(each) <= max(each) < most:
            raise UserError(
                "routing-bad-prompts",
                f"sequence {number} has a token id that the model's {most:,} do not have; use the ids of "
                "its own tokenizer",
            )
    total, done = sum(map(len, sequences)), 0
    try:
        with torch.inference_mode():
            for each in sequences:
                report(done, total)
                model.base_model(torch.tensor([each]), use_cache=False)
                done += len(each)
    except MemoryError:
        raise
    except Exception as error:
        # With a config.json that only loads, a model can raise anything.
        raise UserError(
            "routing-model-fails",
            f"{folder}: this {config.model_type} cannot be run ({type(error).__name__}: "
            f"{str(error).strip().partition(chr(10))[0]}); compare config.json with the original",
        ) from error
    gates = hashlib.sha256()
    for weights in model.parameters():
        if weights.ndim == 2 and weights.shape[0] == experts:
            gates.update(weights.contiguous().view(torch.uint8).numpy().tobytes())
    by_layer = (torch.cat(parts).numpy().astype(np.int64) for parts in chosen.values())
    return Routed(config.model_type, experts, tuple(by_layer), gates.hexdigest())


def _recorder(parts: list[torch.Tensor], argument: str, place: int) -> Callable[..., None]:
    def record(_module: object, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        indices = named[argument] if argument in named else given[place]
        parts.append(indices.reshape(-1, indices.shape[-1]))

    return record


def _first_layers(source: Source, layers: int | None) -> tuple[Any, torch.dtype]:
    config = source.config
    if layers is not None and layers < config.num_hidden_layers:
        of_layers = {
            name: value[:layers]
            for name, value in config.to_dict().items()
            if isinstance(value, list) and len(value) == config.num_hidden_layers
        }
        for name, value in {**of_layers, "num_hidden_layers": layers}.items():
            setattr(config, name, value)
    return config, source.dtype


@contextmanager
def _needed(folder: Path, layers: int | None) -> Iterator[Path]:
    """Yield a folder with the files that have the first layers' weights, and an index of these alone."""
    if layers is None or not (folder / INDEX).is_file():
        yield folder
        return
    try:
        places = safe_parse.json_value(safe_parse.content(folder / INDEX))["weight_map"].items()
    except (ValueError, TypeError, KeyError, AttributeError):
        yield folder  # the loader says what is wrong with it
        return
    first = {
        name: file
        for name, file in places
        if (of := _LAYER.search(f".{name}")) is None or int(of[1]) < layers
    }
    with tempfile.TemporaryDirectory() as temporary:
        made = Path(temporary)
        (made / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": first}))
        for file in {"config.json", *map(str, first.values())}:
            if Path(file).name == file and (folder / file).is_file():
                (made / file).symlink_to((folder / file).resolve())
        yield made


def read_sequences(folder: Path, prompts: Path, most: int, *, token_ids: bool) -> list[list[int]]:
    """Return a file's prompts as token ids, one prompt a line, at most so many tokens in all."""
    try:
        lines = [line for line in safe_parse.text(prompts).splitlines() if line.strip()]
        if token_ids:
            sequences = [list(map(int, line.replace(",", " ").split())) for line in lines]
        else:
            if not (folder / "tokenizer.json").is_file():
                raise UserError(
                    "tokenizer-missing",
                    f"{folder}: has no tokenizer.json; add it, or give a file of token ids with --token-ids",
                )
            tokenizer = load_tokenizer(str(folder))
            sequences = [tokenizer.encode(line).ids for line in lines]
    except (OSError, ValueError) as error:
        what = "token ids, numbers with blanks between" if token_ids else "text in UTF-8"
        raise UserError(
            "routing-bad-prompts", f"{prompts}: cannot be read as prompts, one a line: {what}"
        ) from error
    taken: list[list[int]] = []
    for sequence in sequences:
        for begin in range(0, len(sequence), LONGEST):
            taken.append(sequence[begin : min(begin + LONGEST, begin + most)])
            most -= len(taken[-1])
            if most == 0:
                return taken
    if not taken:
        raise UserError("routing-bad-prompts", f"{prompts}: has no tokens; write a prompt on each line")
    return taken
