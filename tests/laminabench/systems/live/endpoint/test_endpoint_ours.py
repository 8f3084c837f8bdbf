"""Against our own server, with a real engine behind it: the HTTP, the tokenizer and the tokens are real."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from laminabench.runs.status import DONE
from laminabench.sim.simulate import Offered
from laminabench.systems.live.endpoint.replaying import Result, replay
from laminabench.systems.live.endpoint.setup import Api, Behind, EndpointSetup, Served, parse_url
from laminabench.traces.table import Trace

PATIENCE_S = 120
# Of one token each, with and without the space before them.
WORDS = ("cat", "dog", "fox", "hen", "owl", "pig", "ram", "yak", "elk", "ant")
# Two tokens more than the message has.
TEMPLATE = "<user>{% for message in messages %}{{ message['content'] }}{% endfor %}<assistant>"


@pytest.fixture(scope="module")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bytes and a few words, with a chat template."""
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<end>", "<user>", "<assistant>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator([" ".join([*WORDS, *WORDS]), *WORDS] * 4, trainer)
    folder = tmp_path_factory.mktemp("tokenizer")
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<end>")
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def our_url(tokenizer_folder: Path) -> Iterator[str]:
    """One server for all tests here, in a thread: its sockets and its engine are those of `serve`."""
    import torch
    import transformers
    import uvloop

    from lamina.http.address import bound
    from lamina.http.app import Serving
    from lamina.http.choice import Tokenizer
    from lamina.http.service import Limits, Service
    from lamina.serve import Engine

    shape = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.LlamaConfig(
        **shape, num_key_value_heads=2, vocab_size=320, eos_token_id=0, bos_token_id=None, pad_token_id=0
    )
    with torch.random.fork_rng():
        torch.manual_seed(7)
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    engine = Engine(model, kv_tokens=2048, max_sequences=16, threads=1)
    with bound("127.0.0.1", 0) as sock:
        ready, loops = threading.Event(), []
        service = Service(engine, "small", Tokenizer.load(tokenizer_folder), Limits(drain_s=0), None, "test")
        serving = Serving(service, sock, ready=ready.set)

        async def serve() -> None:
            loops.append(asyncio.get_running_loop())
            await serving.serve()

        def run() -> None:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(serve())

        thread = threading.Thread(target=run)
        thread.start()
        try:
            assert ready.wait(PATIENCE_S)
            yield f"http://127.0.0.1:{sock.getsockname()[1]}"
        finally:
            loops[0].call_soon_threadsafe(serving.stop)
            thread.join(PATIENCE_S)
            assert not thread.is_alive()


def replayed(url: str, trace: Trace, api: Api = "completions", tokenizer: Path | None = None) -> Result:
    path = str(tokenizer) if tokenizer else None
    setup = EndpointSetup(Behind(parse_url(url)), Served("small"), api, tokenizer=path, vocab=320)
    return replay(trace, setup, Offered("closed", 4, None), seed=0)


def require_all(result: Result, requests: int, prompt: int, output: int) -> None:
    """Every token of the trace was asked for, made and seen."""
    calls, chunks = result.outcome.calls, result.outcome.chunks
    assert calls["error"].tolist() == [""] * requests
    assert result.outcome.requests["status"].tolist() == [DONE] * requests
    assert np.bincount(chunks["request"], chunks["tokens"]).tolist() == [output] * requests
    assert calls["prompt_counted"].tolist() == [prompt] * requests
    assert calls["completion_counted"].tolist() == [output] * requests
    assert not calls["even"].any()
    assert result.facts["left_out"] == []


def test_our_server_makes_every_token_of_the_trace(our_url: str, make_trace: Callable[..., Trace]) -> None:
    result = replayed(our_url, make_trace(requests=8, prompt=21, output=6))
    require_all(result, 8, 21, 6)
    assert result.facts["added_prompt_tokens"] == 0
    assert (result.facts["server"], result.facts["server_version"]) == ("lamina", "test")


@pytest.mark.parametrize(("api", "added"), [("completions", 0), ("chat", 2)])
def test_prompts_of_text_are_as_long_there_as_the_trace_has_them(
    our_url: str, tokenizer_folder: Path, make_trace: Callable[..., Trace], api: Any, added: int
) -> None:
    result = replayed(our_url, make_trace(requests=6, prompt=19, output=5), api, tokenizer_folder)
    require_all(result, 6, 19, 5)
    facts = result.facts
    assert (facts["prompts"], facts["prompts_of_wrong_length"]) == ("text", 0)
    assert facts["added_prompt_tokens"] == added
