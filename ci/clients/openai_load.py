"""A load of the openai package: streams of completions and of chats by turns; prints what it saw as JSON.

Run by the Python of the clients' environment.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from typing import Any

import openai


async def one(client: openai.AsyncOpenAI, order: dict[str, Any], number: int) -> dict[str, float]:
    """Return one stream: when it was sent, its first and last text, and its tokens as the server counted
    them.
    """
    body = {"model": order["model"], "stream": True, "stream_options": {"include_usage": True}}
    body |= {"max_tokens": order["output_tokens"], "extra_body": {"ignore_eos": True}}
    prompt = f"{number} {order['prompt']}"
    sent = time.monotonic()
    if number % 2:
        chunks = await client.completions.create(prompt=prompt, **body)
    else:
        chunks = await client.chat.completions.create(messages=[{"role": "user", "content": prompt}], **body)
    times, usage = [], None
    async for chunk in chunks:
        # Chats begin with a chunk that has a role and no text.
        if chunk.choices and (number % 2 or chunk.choices[0].delta.content is not None):
            times.append(time.monotonic())
        usage = chunk.usage or usage
    assert usage is not None, "the stream ended without its usage"
    return {
        "sent": sent,
        "first": times[0],
        "last": times[-1],
        "chunks": len(times),
        "prompt_tokens": usage.prompt_tokens,
        "output_tokens": usage.completion_tokens,
    }


async def load(order: dict[str, Any]) -> dict[str, Any]:
    """Send requests, so many at a time, until all have been served."""
    client = openai.AsyncOpenAI(base_url=order["url"] + "/v1", api_key="none", max_retries=0, timeout=120)
    slots = asyncio.Semaphore(order["concurrency"])

    async def next_one(number: int) -> dict[str, float]:
        async with slots:
            return await one(client, order, number)

    async with client:
        served = await asyncio.gather(*map(next_one, range(order["requests"])))
    lasted = max(each["last"] for each in served) - min(each["sent"] for each in served)
    gaps = sum(each["output_tokens"] - 1 for each in served)
    output = sum(each["output_tokens"] for each in served)
    return {
        "requests": len(served),
        "prompt_tokens": sum(each["prompt_tokens"] for each in served),
        "output_tokens": output,
        "token_gap_ms": 1e3 * sum(each["last"] - each["first"] for each in served) / gaps,
        "chunk_gap_ms": 1e3
        * sum(each["last"] - each["first"] for each in served)
        / sum(each["chunks"] - 1 for each in served),
        "ttft_ms": 1e3 * sum(each["first"] - each["sent"] for each in served) / len(served),
        "throughput_tokens_per_s": output / lasted,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("order", help="what to do, as JSON")
    print(json.dumps(asyncio.run(load(json.loads(parser.parse_args().order)))))
