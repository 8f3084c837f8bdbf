"""What is asked of vLLM and made of its steps: a stand-in, whose steps take what they should, and vLLM."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from laminabench.calibrate import vllm
from laminabench.calibrate.parted import CHUNK, STEP
from laminabench.calibrate.vllm import Chunks, Decoding
from laminabench.cli.main import run
from laminabench.systems.live.vllm.process import VllmEndedError
from laminabench.systems.live.vllm.runner import Received, Session
from laminabench.traces.table import Trace

REAL = os.environ.get("LAMINABENCH_VLLM")
GAP_S = 1e-4


class Steps:
    """Decodes all at once: a step takes 1 ms a request, and a second more in the first one.

    With prompts, one request after the other takes 1 ms for each token that no prompt before began with.
    """

    def __init__(self, most: int = 1000) -> None:
        self.requested: list[Trace] = []
        self._most = most

    def replay(self, trace: Trace, prompts: Iterable[Sequence[int]] = ()) -> Received:
        self.requested.append(trace)
        received, ids = Received(trace), [list(each) for each in prompts]
        rows = list(range(len(trace)))
        received.take({"events": [["a", row, 0.0, None] for row in rows]})
        at_s, events, computed = 0.0, [], 0
        if ids:
            for row in rows:
                new = len(ids[row]) - max([_same(ids[row], one) for one in ids[:row]], default=0)
                computed += new
                events.append(["s", at_s, at_s + new / 1000, 1, 0, [row], [], [row], 0])
                at_s += new / 1000 + GAP_S
        else:
            last = int(trace.output_tokens[0]) - 1
            running = rows[: self._most]
            for step in range(last + 1):
                joined, ended = running * (step == 0), running * (step == last)
                end_s = at_s + len(running) / 1000 + (step == 0)
                events.append(["s", at_s, end_s, len(running), 0, joined, [], ended, 0])
                at_s = end_s + GAP_S
        received.take({"events": events})
        received.take({"done": {"prompt_tokens_computed": computed}})
        return received


def _same(one: Sequence[int], other: Sequence[int]) -> int:
    """How long they begin alike, in blocks of 128."""
    pairs = zip(one, other, strict=False)
    equal = next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
    return equal // 128 * 128


def test_a_batch_decodes_together_and_its_first_step_does_not_count() -> None:
    steps = Steps()
    result = Decoding(cast(Session, steps), (16, 1024)).measure(1024)
    assert result[STEP, 8, 1024] == pytest.approx(8e-3)
    assert result["boundary", 64] == pytest.approx(GAP_S)
    assert set(result) == {(STEP, n, 1024) for n in vllm.REQUESTS} | {("boundary", n) for n in vllm.REQUESTS}
    for n, trace in zip(vllm.REQUESTS, steps.requested, strict=True):
        assert len(trace) == n
        # The first of the steps that count reads one token more than the prompt, the middle one 1024.
        assert set(trace.prompt_tokens + 1 + vllm.STEPS // 2) == {1024}
        assert set(trace.output_tokens) == {vllm.STEPS + 1}


def test_a_batch_that_is_not_all_there_is_no_measurement() -> None:
    with pytest.raises(VllmEndedError, match="64 requests did not decode together"):
        Decoding(cast(Session, Steps(most=32)), (16,)).measure(16)


def test_chunks_follow_what_the_prefix_cache_has() -> None:
    steps = Steps()
    chunks = Chunks(cast(Session, steps), 32000)
    result = chunks.measure(512)
    assert result == pytest.approx(
        {(CHUNK, 512, 0): 0.512, **{(CHUNK, c, 512): c / 1000 for c in vllm.CHUNKS}}
    )
    assert chunks.measure(0) == pytest.approx({(CHUNK, c, 0): c / 1000 for c in vllm.CHUNKS})
    assert np.concatenate([trace.output_tokens for trace in steps.requested]).tolist() == [1] * 7
    # Not whole blocks: they are computed again.
    with pytest.raises(VllmEndedError, match="of which"):
        chunks.measure(500)


@pytest.mark.skipif(not REAL, reason="LAMINABENCH_VLLM names no Python that has vLLM")
@pytest.mark.usefixtures("shared_machine")
def test_vllm_is_measured_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(vllm, "KV_TOKENS", (16, 64))
    monkeypatch.setattr(vllm, "BEFORE", (0, 128))
    monkeypatch.setattr(Chunks, "columns", (0, 128))
    target = str(tmp_path / "set.toml")
    words = ("--system", "vllm", "--deployment", "1xcpu", "--model", "llama-tiny", "--seconds", "1")
    result = _as_json(capsys, "calibrate", *words, "-o", target)
    assert result["device"]["name"] == "cpu-vllm"
    assert {row["term"]: (row["points"], row["repeats"]) for row in result["terms"]} == {
        "steps that decode": (14, 3),
        "steps of a prompt's chunk": (7, 3),
        "between steps": (7, 6),
    }
    replay = ("replay", "--trace", "azure-code", "--offline", "--num-requests", "20", "--no-out")
    of = ("--model", "llama-tiny", "--system", "vllm", "--costs", target, "--deployment", "1xcpu-vllm")
    assert _as_json(capsys, *replay, *of)["tokens_generated"] > 0


def _as_json(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    with pytest.raises(SystemExit) as ended:
        run([*words, "--json"])
    out, err = capsys.readouterr()
    assert ended.value.code == 0, err
    result: dict[str, Any] = json.loads(out)
    return result
