"""Decode a trace with vLLM, prefill stripped out.

    PYTHONPATH=laminabench/baselines/vllm VLLM_PYTHON -P -m decode_replay <ORDER 2>vllm.log

ORDER is one line of JSON (`order`); stdin then stays open, and its end means that nobody wants the rest.
stdout carries one JSON object a line and nothing else; times are seconds since the replay began:

    {"ready": {...}}                           once: all that vLLM runs with, as it resolved it
    {"events": [...]}                          in the order they happened; an empty list is a sign of life
        ["a", row, at_s, null or why not]      a request came; why it can never be served
        ["s", start_s, end_s, size, kv_tokens, [joined], [preempted], [ended], recomputed]   a step
    {"done": {...}}                            the last line, if all went well
    {"error": "...", "kind": "...", "at_s": t} the last line otherwise; the exit code is then 1

What a step is: one `LLMEngine.step()`: scheduling, inputs, model, logits, greedy sampling, one output object
a request, and vLLM's own statistics. Not in it: adding requests, which happens between steps; tokenizer,
detokenizer, HTTP, and the hop between a server's processes.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
import traceback
from types import FrameType
from typing import Any

from .offering import Offering
from .order import Order
from .voice import Voice


def main() -> int:
    """From the order to its last word."""
    order = Order.parse(sys.stdin.readline())
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    signal.signal(signal.SIGTERM, _terminate)
    os.sched_setaffinity(0, order.cores)
    # vLLM, and what it loads, write to stdout as they like.
    voice = Voice(os.fdopen(os.dup(1), "w", encoding="utf-8"))
    os.dup2(2, 1)
    engine: Any = None
    began_s: float | None = None
    try:
        from .engine import VllmEngine

        started_s = time.monotonic()
        engine = VllmEngine(order)
        voice.say(ready=engine.ready() | {"startup_s": time.monotonic() - started_s})
        offering, began_s = Offering(engine, order, voice), time.monotonic()
        offering.run()
        voice.say(done=engine.done())
    except BrokenPipeError:
        return 1  # nobody listens any more
    except Exception as error:
        traceback.print_exc()
        at_s = 0.0 if began_s is None else time.monotonic() - began_s
        with contextlib.suppress(BrokenPipeError):
            voice.say(error=_first_line(error), kind=type(error).__name__, at_s=at_s)
        return 1
    finally:
        if engine is not None:
            engine.close()
    return 0


def _first_line(error: Exception) -> str:
    return (str(error).strip() or "no reason given").splitlines()[0]


def _terminate(_: int, __: FrameType | None) -> None:
    sys.exit(143)


def _end_with_stdin() -> None:
    """Whoever gave the order is gone: so are we, and the workers that vLLM started in our process group."""
    descriptor = sys.stdin.fileno()
    while os.read(descriptor, 4096):
        pass
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGTERM)
        time.sleep(10)
        os.killpg(0, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    # Threads of vLLM need not agree.
    os._exit(code)
