"""Real vLLM on this machine: from the user's choices to the order its runner gets, or why that cannot be."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from laminabench.baselines.environment import Kind
from laminabench.catalog.find_model import to_hf_config
from laminabench.sim.simulate import Offered
from laminabench.systems.live import gpus
from laminabench.systems.live.local import DTYPES, KV_SHARE, MAX_SEQUENCES, LocalSetup
from laminabench.traces.table import Trace
from laminabench.util.atomic import replacing
from laminabench.util.errors import UserError

DEPLOYMENT = "2xcpu"
TIMEOUT_S = 300.0
# vLLM's default for CPUs.
CPU_BLOCK = 128
# What vLLM calls the models of the catalogue's families.
_ARCHITECTURES = {"llama": "LlamaForCausalLM", "opt": "OPTForCausalLM", "qwen2": "Qwen2ForCausalLM"}
_ARCHITECTURES |= {"qwen3": "Qwen3ForCausalLM", "mistral": "MistralForCausalLM"}
# Memory of a vLLM process besides weights and KV, measured with torch and vLLM loaded, rounded up.
_PROCESS_BYTES = 1.5e9


@dataclass(frozen=True, slots=True)
class VllmSetup(LocalSetup):
    """The user's choices, resolved."""

    tensor_parallel: int | None = None
    max_num_seqs: int = MAX_SEQUENCES
    max_model_len: int | None = None
    block_size: int | None = None
    kv_tokens: int | None = None
    gpu_memory_utilization: float | None = None
    enforce_eager: bool = False
    # What computes prompts: nothing (their KV is made up), or vLLM; the next two are then its own.
    prefill: Literal["off", "model"] = "off"
    max_batched_tokens: int | None = None
    prefix_sharing: bool | None = None
    runner_timeout: float = TIMEOUT_S

    @property
    def kind(self) -> Kind:
        return "cpu" if self.deployment.model.device.name == "cpu" else "cuda"

    @property
    def devices(self) -> int:
        """The number of cores, or GPUs."""
        return self.deployment.model.count

    @property
    def workers(self) -> int:
        """The workers that share the model. Cores of a CPU are threads of one worker by default."""
        return self.tensor_parallel or (1 if self.kind == "cpu" else self.devices)

    @property
    def kv_bytes_per_token(self) -> float:
        """The bytes of all workers together: those beyond the number of KV heads have copies."""
        return self.model.kv_bytes_per_token * max(1, self.workers // self.model.kv_heads)

    def gpus(self) -> list[int]:
        """Return this machine's GPUs that the deployment names; raise a UserError if there are fewer."""
        if self.kind == "cpu":
            return []
        instead = f"--deployment {DEPLOYMENT}, or --backend modelled"
        return gpus.pick(self.deployment.model.device.name, self.devices, instead)

    def cores(self) -> list[int]:
        """Return a core a device; of GPUs all the cores there are."""
        allowed = sorted(os.sched_getaffinity(0))
        return allowed[: self.devices] if self.kind == "cpu" else allowed


SETUP = VllmSetup


def check(setup: VllmSetup) -> None:
    """Raise a UserError if this machine cannot run it; nothing has started yet."""
    deployment, count = setup.deployment, setup.devices
    if deployment.attention is not None:
        raise UserError(
            "deployment-splits-attention",
            f"deployment {deployment} splits attention off, and vLLM does not; write COUNTxDEVICE, such as "
            f"{DEPLOYMENT}",
        )
    if setup.kind == "cpu":
        cores = len(os.sched_getaffinity(0))
        if count > cores:
            raise UserError(
                "deployment-too-many-cores",
                f"{deployment} is {count} cores and this process may use {cores}; use {cores}xcpu",
            )
    else:
        setup.gpus()
    if count % setup.workers:
        raise UserError(
            "deployment-tensor-parallel",
            f"--tensor-parallel {setup.workers} does not divide the devices of {deployment}",
        )
    if setup.kind == "cuda" and setup.workers != count:
        raise UserError(
            "deployment-tensor-parallel",
            f"--tensor-parallel {setup.workers} leaves GPUs of {deployment} idle; leave it out",
        )
    legal = setup.model.tp_degrees()
    if setup.workers not in legal:
        raise UserError(
            "deployment-tensor-parallel",
            f"--tensor-parallel {setup.workers} does not divide the heads and layers' widths of "
            f"{setup.model.name}; possible: {', '.join(map(str, legal))}",
        )
    if setup.kind == "cpu" and setup.gpu_memory_utilization is not None:
        raise UserError(
            "deployment-no-gpu",
            "--gpu-memory-utilization is for GPUs; of a CPU's memory give --kv-tokens instead",
        )
    if setup.max_batched_tokens is not None and setup.max_batched_tokens < setup.max_num_seqs:
        raise UserError(
            "replay-prompt-budget",
            f"--max-batched-tokens {setup.max_batched_tokens} is less than the {setup.max_num_seqs} of "
            "--max-num-seqs, each of which takes one; raise it, or lower --max-num-seqs",
        )
    architecture(setup)


def architecture(setup: VllmSetup) -> str | None:
    """Return vLLM's name for a model of the catalogue; None if its config says it."""
    if not setup.of_catalogue:
        return None
    family = str(to_hf_config(setup.model.name, 1)["model_type"])
    if family not in _ARCHITECTURES:
        raise UserError(
            "model-unknown-to-vllm",
            f"{setup.model.name} is of family {family}, whose name in vLLM is unknown; give a config.json",
        )
    return _ARCHITECTURES[family]


def longest(setup: VllmSetup, trace: Trace) -> int:
    """Return the longest request vLLM has to be ready for: the trace's, or as long as the model goes."""
    if setup.max_model_len is not None:
        return setup.max_model_len
    lengths = int((trace.prompt_tokens.astype(np.int64) + trace.output_tokens).max(initial=1))
    positions = None if setup.of_catalogue else setup.config().get("max_position_embeddings")
    return min(lengths, positions) if isinstance(positions, int) else lengths


def kv_tokens(setup: VllmSetup, trace: Trace, free_bytes: float) -> int | None:
    """Return the tokens of KV memory, in full blocks; None on GPUs, where vLLM decides.

    By default, as with our engine, a quarter of the free memory and no more than the longest requests could
    fill at once.
    """
    if setup.kind == "cuda":
        return setup.kv_tokens
    block = setup.block_size or CPU_BLOCK
    token_bytes = setup.kv_bytes_per_token
    # Weights are stored a second time, in the layout of the CPU's kernels.
    room = free_bytes - 2 * setup.model.weight_bytes - _PROCESS_BYTES * setup.workers
    if room < token_bytes * block:
        raise UserError(
            "model-too-large",
            f"{setup.model.name} does not fit: {free_bytes / 1e9:.1f} GB of memory are free, and weights "
            f"and {setup.workers} processes of vLLM take {(free_bytes - room) / 1e9:.1f} GB; use a smaller "
            "--model",
        )
    if setup.kv_tokens is not None:
        if setup.kv_tokens * token_bytes > room:
            raise UserError(
                "model-kv-too-large",
                f"--kv-tokens {setup.kv_tokens} are {setup.kv_tokens * token_bytes / 1e9:.1f} GB and "
                f"{room / 1e9:.1f} GB are free next to the weights; give at most {int(room // token_bytes)}",
            )
        return max(1, setup.kv_tokens // block) * block
    lengths = np.sort(trace.prompt_tokens.astype(np.int64) + trace.output_tokens)[-setup.max_num_seqs :]
    most = int((-(-lengths // block)).sum())
    return max(1, min(int(min(KV_SHARE * free_bytes, room) // (token_bytes * block)), most)) * block


def order(
    setup: VllmSetup,
    trace: Trace,
    offered: Offered,
    tokens: int | None,
    folder: Path,
    prompts: Path | None = None,
) -> dict[str, object]:
    """Return the runner's first line of input; a model whose weights are made up is described in `folder`."""
    length = longest(setup, trace)
    block = setup.block_size or (CPU_BLOCK if setup.kind == "cpu" else None)
    kv_bytes = None
    if tokens is not None:
        # vLLM does not start without room for one request that long; longer ones could never be served.
        length = min(length, tokens)
        # vLLM keeps one block for itself.
        kv_bytes = math.ceil((tokens + (block or 16)) * setup.kv_bytes_per_token)
    model, load_format = _model(setup, length, folder)
    return {
        "model": str(model),
        "load_format": load_format,
        "dtype": DTYPES.get(setup.model.dtype, "auto"),
        "tensor_parallel": setup.workers,
        "max_num_seqs": setup.max_num_seqs,
        "max_model_len": length,
        "block_size": block,
        "kv_bytes": kv_bytes,
        "gpu_memory_utilization": setup.gpu_memory_utilization,
        "enforce_eager": setup.enforce_eager,
        "cores": setup.cores(),
        "mode": offered.mode,
        "concurrency": offered.concurrency,
        **requests_of(trace, prompts),
        "max_batched_tokens": setup.max_batched_tokens,
        "prefix_caching": setup.prefix_sharing,
        "arrival_s": trace.arrival_s.tolist() if offered.mode == "open" else [],
    }


def requests_of(trace: Trace, prompts: Path | None) -> dict[str, object]:
    """Return the part of an order that another replay of the same vLLM may have otherwise."""
    return {
        "prompt_tokens": trace.prompt_tokens.tolist(),
        "output_tokens": trace.output_tokens.tolist(),
        "prompts": None if prompts is None else str(prompts),
    }


def write_prompts(prompts: Iterable[Sequence[int]], path: Path) -> Path:
    """Write the prompts for the runner."""
    with path.open("wb") as file:
        for ids in prompts:
            file.write(np.array(ids, np.uint32).tobytes())
    return path


def _model(setup: VllmSetup, length: int, folder: Path) -> tuple[Path, str]:
    """Return the model's folder as vLLM takes it, and whether its weights are read or made up."""
    if setup.weights:
        return setup.weights.absolute(), "auto"
    if setup.of_catalogue:
        # Positions rotate and are no rows of a table, so there are as many as are needed.
        config = to_hf_config(setup.model.name, length) | {"architectures": [architecture(setup)]}
    else:
        config = setup.config()
    text = json.dumps(config)
    # The same model has the same path: vLLM goes by that when it looks for what it has compiled.
    place = folder / hashlib.sha256(text.encode()).hexdigest()[:16]
    with replacing(place / "config.json") as temporary:
        temporary.write_text(text, encoding="utf-8")
    return place, "dummy"
