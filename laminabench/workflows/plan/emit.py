"""A plan's winner as what starts it: vLLM's commands, a graph for Dynamo, or values for llm-d's chart.

Nothing of it was run on a cluster. Sources of the formats, read on 2026-11-28: vLLM 0.32's argument parser
and its guide to NixlConnector, Dynamo's DynamoGraphDeployment (v1beta1), llm-d's chart llm-d-modelservice.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from laminabench.catalog.deployment import Workers
from laminabench.catalog.layout import NODE_DEVICES, Layout
from laminabench.catalog.models import ModelShape
from laminabench.requests.plan import Emitted
from laminabench.sim.spec import Spec
from laminabench.systems.modelled.setup import Setup
from laminabench.systems.modelled.system import pool_layout
from laminabench.systems.registry import system
from laminabench.traces.formats.wording import printable
from laminabench.util.errors import UserError
from laminabench.util.yaml import to_yaml
from laminabench.workflows.plan.answer import Answer
from laminabench.workflows.plan.measure import Point, winner
from laminabench.workflows.plan.question import Question

SERVED = "vllm"  # the only system that they run
VERSION = "0.32.0"
# Flags of that version, as its parser declares them: tests hold the pins to the version.
_DECLARED = """
--port --dtype --quantization --kv-cache-dtype --tensor-parallel-size --data-parallel-size
--pipeline-parallel-size --enable-expert-parallel --all2all-backend --max-num-seqs --max-num-batched-tokens
--gpu-memory-utilization --async-scheduling --no-async-scheduling --attention-backend --kv-transfer-config
"""
FLAGS = frozenset(_DECLARED.split())
_KV_TRANSFER = json.dumps({"kv_connector": "NixlConnector", "kv_role": "kv_both"})
_BACKENDS = {"flashinfer": "FLASHINFER", "fa3-64": "FLASH_ATTN", "fa3-128": "FLASH_ATTN"}
_CHECKPOINT = re.compile(r"config\.json of ([\w.-]+/[\w.-]+)")
_SIDE_PORT = "5600"


@dataclass(frozen=True, slots=True)
class Server:
    """Equal vLLM servers: how many, on what, and their flags besides the layout's."""

    role: Literal["both", "prefill", "decode"]
    count: int
    device: str
    layout: Layout
    flags: tuple[str, ...]

    @property
    def split(self) -> tuple[str, ...]:
        """The flags of the layout."""
        layout = self.layout
        sizes = {"tensor": layout.tp, "data": layout.dp, "pipeline": layout.pp}
        flags = [word for name, n in sizes.items() if n > 1 for word in (f"--{name}-parallel-size", str(n))]
        return (*flags, *_of_experts(layout))


@dataclass(frozen=True, slots=True)
class Started:
    """The text that starts the winner, notes on it, and the arguments of each kind of server."""

    text: str
    notes: tuple[str, ...]
    arguments: tuple[tuple[str, ...], ...]


def emit(kind: Emitted, answer: Answer) -> Started:
    """Return what starts the answer's winner; a UserError if that is no server that exists."""
    point = answer.winner
    assert point is not None
    _require_served(answer, point, kind)
    question, candidate = answer.question, point.candidate
    setup = question.setup(candidate)
    spec = system(candidate.system).build(setup).spec
    servers = _servers(point, setup, spec)
    for each in servers:
        if each.layout.devices > NODE_DEVICES:
            raise UserError(
                "plan-emit-nodes",
                f"--emit {kind}: {candidate} has servers of {each.layout.devices} devices, more than a "
                f"node has, which is not written: add --most-devices {NODE_DEVICES}",
            )
    model, notes = checkpoint(question.model)
    notes = [*notes, *_about(question, setup, servers)]
    head = [
        f"{candidate}: {question.model.name} on {question.trace.meta.name}, modelled by laminabench with "
        f"{question.costs.name}: ${point.usd_per_million_tokens:.3g} a million tokens, TBT p99 "
        f"{point.tbt_p99_ms:.3g} ms",
        f"Flags of vLLM {VERSION}. Not verified on a cluster.",
        *notes,
    ]
    writers: Mapping[Emitted, Callable[[str, str, list[Server]], str]] = {
        "vllm": _commands,
        "dynamo": _graph,
        "llm-d": _values,
    }
    name = re.sub(r"[^a-z0-9]+", "-", question.model.name.lower())[:63].strip("-") or "model"
    if kind != "vllm":
        where = ", ".join(f"{each.role} on {each.layout.devices}x{each.device} each" for each in servers)
        head.append(f"Select nodes that have the devices: {where.replace('both', 'servers')}.")
    # Names of models and traces are others' text, and a line end in one would end the comment.
    text = "".join(f"# {printable(line)}\n" for line in head) + writers[kind](model, name, servers)
    arguments = tuple((model, *each.split, *each.flags) for each in servers)
    for words in arguments:
        assert {word for word in words if word.startswith("--")} <= FLAGS
    return Started(text, tuple(notes), arguments)


def _require_served(answer: Answer, point: Point, kind: Emitted) -> None:
    if point.candidate.system == SERVED:
        return
    limit = answer.question.slo_tbt_p99_ms
    best = winner((each for each in answer.search.points if each.candidate.system == SERVED), limit)
    other = (
        f"{best.candidate} for ${best.usd_per_million_tokens:.3g} a million tokens" if best else "its best"
    )
    raise UserError(
        "plan-emit-system",
        f"--emit {kind}: the winner, {point.candidate}, runs on no released server, and nothing is written; "
        f"add --systems {SERVED} to write {other}",
    )


def checkpoint(model: ModelShape) -> tuple[str, list[str]]:
    """Return what `vllm serve` takes as the model, and what to know of it."""
    _, _, as_type = model.name.partition("@")
    notes = []
    if as_type and as_type != "fp8":
        notes.append(f"The model is planned in {as_type}: name a checkpoint in that format.")
    if published := _CHECKPOINT.match(model.source):
        return published[1], notes
    if model.source.endswith(".json"):
        return str(Path(model.source).parent), notes
    return f"path/of/{model.name}", [*notes, f"No checkpoint of {model.name} is known: give its path."]


def _servers(point: Point, setup: Setup, spec: Spec) -> list[Server]:
    """Return the servers of all instances, those of prompts first."""
    candidate = point.candidate
    workers, pool = candidate.deployment.model, candidate.deployment.prefill
    layout, budget = workers.shared(), candidate.prompt_budget
    common = _common(setup, workers)
    limits = ("--max-num-seqs", str(spec.max_requests // layout.dp))
    if pool is None or spec.pool is None:
        tokens = ("--max-num-batched-tokens", str(budget)) if budget else ()
        flags = (*limits, *tokens, *common)
        return [Server("both", candidate.instances, workers.device.name, layout, flags)]
    engines, alone = pool_layout(setup.model, pool)
    transfer = ("--kv-transfer-config", _KV_TRANSFER)
    first = ("--max-num-seqs", str(spec.pool.engine.max_requests), "--max-num-batched-tokens", str(budget))
    prompts = (*first, *_common(setup, pool), *transfer)
    decoding = (*limits, *common, *transfer)
    return [
        Server("prefill", engines * candidate.instances, pool.device.name, alone, prompts),
        Server("decode", candidate.instances, workers.device.name, layout, decoding),
    ]


def _common(setup: Setup, on: Workers) -> tuple[str, ...]:
    """Return the flags of the model, its memory, host and kernels."""
    model = setup.model
    flags = ["--gpu-memory-utilization", f"{setup.gpu_memory_utilization:g}"]
    if model.dtype == "bf16":
        flags += ["--dtype", "bfloat16"]
    elif model.name.endswith("@fp8"):
        flags += ["--quantization", "fp8"]
    if model.kv_dtype == "fp8":
        flags += ["--kv-cache-dtype", "fp8"]
    flags.append("--async-scheduling" if setup.host_async else "--no-async-scheduling")
    backend = _BACKENDS.get(_kernel(setup, on.device.name))
    return (*flags, "--attention-backend", backend) if backend else tuple(flags)


def _kernel(setup: Setup, device: str) -> str:
    """Return the kernel of decode attention that the plan takes on a device; empty where it was measured."""
    attention = setup.costs.attention.get(device)
    return attention.kernel if attention and not setup.model.latent else ""


def _of_experts(layout: Layout) -> tuple[str, ...]:
    if layout.ep == 1:
        return ()
    return (
        "--enable-expert-parallel",
        *(("--all2all-backend", "deepep_low_latency") if layout.dispatches else ()),
    )


def _about(question: Question, setup: Setup, servers: list[Server]) -> list[str]:
    kernels = dict.fromkeys(_kernel(setup, each.device) for each in servers)
    notes = [
        f"The plan has decode attention of {name}, for which vLLM has no flag."
        for name in kernels
        if name and name not in _BACKENDS
    ]
    if not question.prompts:
        notes.append(
            "The plan leaves prompts out, which this server computes too: plan with --slo-ttft-ms or "
            "--prefill any to count them."
        )
    if len(servers) > 1:
        notes.append(
            "Prompts are computed by servers of their own, and KV goes to the others through NIXL, which has "
            "to be installed."
        )
    return notes


def _commands(model: str, name: str, servers: list[Server]) -> str:
    """Return the shell commands that start the servers."""
    del name
    blocks = []
    for place, each in enumerate(servers):
        what = {"both": "requests", "prefill": "prompts", "decode": "decoding"}[each.role]
        start = ["vllm", "serve", model]
        words = ["--port", str(8000 + 100 * place), *each.split, *each.flags]
        lines, line = [], shlex.join(start)
        for word in words:
            if word.startswith("--"):
                lines.append(line)
                line = word
            else:
                line += f" {shlex.quote(word)}"
        side = f'VLLM_NIXL_SIDE_CHANNEL_HOST="$(hostname -i)" VLLM_NIXL_SIDE_CHANNEL_PORT={_SIDE_PORT} \\\n'
        count = f"{each.count} servers" if each.count > 1 else "1 server"
        own = " each; give each a host, or ports, of its own" if each.count > 1 else ""
        blocks.append(
            f"\n# {count} for {what}, on {each.layout.devices}x{each.device}{own}\n"
            + (side if len(servers) > 1 else "")
            + " \\\n    ".join([*lines, line])
            + "\n"
        )
    if len(servers) > 1:
        blocks.append(
            "\n# Clients need a proxy that sends a prompt to the first and then to the second kind, as\n"
            "# the one in vLLM's examples of NixlConnector; --emit dynamo and --emit llm-d have routers.\n"
        )
    elif servers[0].count > 1:
        blocks.append("\n# Clients need a router that deals requests out in turn.\n")
    return "".join(blocks)


def _graph(model: str, name: str, servers: list[Server]) -> str:
    """Return a DynamoGraphDeployment."""
    image = "nvcr.io/nvidia/ai-dynamo/vllm-runtime:VERSION"
    parts: list[dict[str, object]] = [
        {
            "name": "Frontend",
            "type": "frontend",
            "replicas": 1,
            "podTemplate": {"spec": {"containers": [{"name": "main", "image": image}]}},
        }
    ]
    for each in servers:
        role = {"both": "worker"}.get(each.role, each.role)
        mode = () if each.role == "both" else ("--disaggregation-mode", each.role)
        container = {
            "name": "main",
            "image": image,
            "command": ["python3", "-m", "dynamo.vllm"],
            # Kubernetes would expand a $(NAME).
            "args": ["--model", model.replace("$", "$$"), *mode, *each.split, *each.flags],
            "envFrom": [{"secretRef": {"name": "hf-token-secret"}}],
            "resources": {"limits": {"nvidia.com/gpu": str(each.layout.devices)}},
        }
        title = {"prefill": "VllmPrefillWorker"}.get(each.role, "VllmDecodeWorker")
        spec = {"spec": {"containers": [container]}}
        parts.append({"name": title, "type": role, "replicas": each.count, "podTemplate": spec})
    return (
        "# Set VERSION to a release of Dynamo that has this vLLM; hf-token-secret holds HF_TOKEN.\n"
        + to_yaml(
            {
                "apiVersion": "nvidia.com/v1beta1",
                "kind": "DynamoGraphDeployment",
                "metadata": {"name": name},
                "spec": {"components": parts},
            }
        )
    )


def _values(model: str, name: str, servers: list[Server]) -> str:
    """Return values of the chart, which adds the model, the port, and tensor and data parallelism itself."""
    values: dict[str, object] = {
        "modelArtifacts": {
            "name": model,
            "uri": f"hf://{model}",
            "authSecretName": "llm-d-hf-token",
            "labels": {"llm-d.ai/inferenceServing": "true", "llm-d.ai/model": name},
        },
        "routing": {"servicePort": 8000, "proxy": {"enabled": len(servers) > 1, "connector": "nixlv2"}},
        "decode": {"create": False},
        "prefill": {"create": False, "replicas": 0},
    }
    for each in servers:
        layout = each.layout
        own = ("--pipeline-parallel-size", str(layout.pp)) if layout.pp > 1 else ()
        address = {"fieldRef": {"fieldPath": "status.podIP"}}
        side = [
            {"name": "VLLM_NIXL_SIDE_CHANNEL_HOST", "valueFrom": address},
            {"name": "VLLM_NIXL_SIDE_CHANNEL_PORT", "value": _SIDE_PORT},
        ]
        container = {
            "name": "vllm",
            "image": "ghcr.io/llm-d/llm-d-cuda:VERSION",
            "modelCommand": "vllmServe",
            "args": [*own, *_of_experts(layout), *each.flags],
            **({"env": side} if len(servers) > 1 else {}),
            "mountModelVolume": True,
        }
        values["prefill" if each.role == "prefill" else "decode"] = {
            "create": True,
            "replicas": each.count,
            "parallelism": {"tensor": layout.tp, "data": layout.dp, "dataLocal": layout.dp, "workers": 1},
            "containers": [container],
        }
    return (
        "# Set VERSION to an image that has this vLLM, modelArtifacts.size to what the weights take.\n"
        + to_yaml(values)
    )
