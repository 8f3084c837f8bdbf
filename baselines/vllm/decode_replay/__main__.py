"""Replay a trace with vLLM: decode it, prefill stripped out, or serve its prompts as vLLM does.

    PYTHONPATH=baselines/vllm VLLM_PYTHON -P -m decode_replay <ORDER 2>vllm.log

ORDER is one line of JSON (`protocol.Order`). stdin stays open: after a replay every further line on it asks
for another one, the same if it is empty, else with other requests (`protocol.REQUESTS`); its end means that
nothing more is wanted. stdout carries one JSON object a line and nothing else; times are seconds since the
replay began:

    {"ready": {...}}                           once: all that vLLM runs with, as it resolved it
    {"events": [...]}                          in the order they happened; an empty list is a sign of life
        ["a", row, at_s, null or why not]      a request came; why it can never be served
        ["s", start_s, end_s, size, kv_tokens, [joined], [preempted], [ended], recomputed, [begun], [answers]]
                                           a step (`watch.Step`)
    {"done": {...}}                            the last line of a replay that went well
    {"error": "...", "kind": "...", "at_s": t} the last line otherwise; the exit code is then 1

What a step is: one `LLMEngine.step()`: scheduling, inputs, model, logits, greedy sampling, one output object
a request, and vLLM's own statistics. Not in it: adding requests, which happens between steps; tokenizer,
detokenizer, HTTP, and the hop between a server's processes.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import sys
import threading
import time
import traceback
from types import FrameType
from typing import TYPE_CHECKING

from .offering import Offering
from .protocol import EventWriter, Order

if TYPE_CHECKING:
    from .engine import VllmEngine


def main() -> int:
    """Replay until stdin ends or vLLM fails."""
    order = Order.parse(sys.stdin.readline())
    again = queue.SimpleQueue[bytes]()
    threading.Thread(target=_read_stdin, args=(again,), daemon=True).start()
    signal.signal(signal.SIGTERM, _terminate)
    os.sched_setaffinity(0, order.cores)
    # vLLM, and what it loads, write to stdout as they like.
    writer = EventWriter(os.fdopen(os.dup(1), "w", encoding="utf-8"))
    os.dup2(2, 1)
    engine: VllmEngine | None = None
    began_s: float | None = None
    try:
        from .engine import VllmEngine

        started_s = time.monotonic()
        engine = VllmEngine(order)
        writer.write(ready=engine.ready() | {"startup_s": time.monotonic() - started_s})
        while True:
            engine.begin(order)
            offering, began_s = Offering(engine, order, writer), time.monotonic()
            offering.run()
            writer.write(done=engine.done())
            order = order.again(again.get())  # waits: its end is a message too
    except BrokenPipeError:
        return 1  # the reader of stdout has ended
    except Exception as error:
        traceback.print_exc()
        at_s = 0.0 if began_s is None else time.monotonic() - began_s
        with contextlib.suppress(BrokenPipeError):
            writer.write(error=_first_line(error), kind=type(error).__name__, at_s=at_s)
        return 1
    finally:
        if engine is not None:
            engine.close()


def _first_line(error: Exception) -> str:
    return (str(error).strip() or "no reason given").splitlines()[0]


def _terminate(_: int, __: FrameType | None) -> None:
    sys.exit(143)


def _read_stdin(again: queue.SimpleQueue[bytes]) -> None:
    """Pass lines on. At the end everything ends: this process, and vLLM's workers in its process group."""
    descriptor, rest = sys.stdin.fileno(), b""
    while data := os.read(descriptor, 1 << 16):
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            again.put(line)
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGTERM)
        time.sleep(10)
        os.killpg(0, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    try:
        code = main()
    except SystemExit as ended:
        code = int(ended.code or 0)
    sys.stderr.flush()
    # Threads of vLLM need not agree.
    os._exit(code)
