"""A replay against a server: probe and warm up the server, offer the trace, make the tables."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from laminabench.catalog.families import load_models
from laminabench.runs.manifest import Partial
from laminabench.sim.outcome import Outcome
from laminabench.sim.simulate import Offered
from laminabench.systems.live.endpoint.client import Part, pool_of
from laminabench.systems.live.endpoint.probe import Probe, Probed, probed
from laminabench.systems.live.endpoint.processes import (
    ClientResult,
    run_here,
    run_in_processes,
    shards,
    until_terminated,
)
from laminabench.systems.live.endpoint.prompts import Prompts, check_lengths, load_tokenizer, words_of
from laminabench.systems.live.endpoint.records import outcome_of
from laminabench.systems.live.endpoint.setup import CONNECTIONS, EndpointSetup
from laminabench.systems.live.recent import expected_of, watched
from laminabench.traces.table import Trace
from laminabench.util import safe_parse
from laminabench.util.errors import UserError
from laminabench.util.progress import SILENT, Listener

# Of the server and of the client, as a Run keeps them.
Facts = dict[str, Any]

# Every vocabulary has more ids than these.
SAFE_VOCAB = 10_000
# Of text prompts, how many are encoded again to see whether they are as long as they should be.
CHECKED_PROMPTS = 200
# A client that works so much of the time reads what came later than it came.
TOO_BUSY = 0.8


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a replay that only a client saw."""

    outcome: Outcome
    facts: Facts
    notes: list[str]
    partial: Partial | None
    interrupted: bool


def replay(
    trace: Trace, setup: EndpointSetup, offered: Offered, *, seed: int, listener: Listener = SILENT
) -> Result:
    """Probe the server, send the trace, and return what the client saw."""
    server, prompts, facts, notes = until_terminated(_prepare(trace, setup, seed))
    places = 0  # requests come at their times
    if offered.mode != "open":
        requested = offered.concurrency if offered.mode == "closed" else setup.connections or CONNECTIONS
        places = min(requested, len(trace))
    part = Part(setup, server.accepted, prompts, trace, np.arange(len(trace)), offered.mode, places)
    parts = shards(part, setup.client_workers)

    def begun() -> None:
        listener.detail("the server is probed and warmed up: the clock is running")

    expected = expected_of(trace, offered, full_length=not {"ignore_eos", "min_tokens"} & {*server.left_out})
    with watched(listener, expected, exact=False) as recent:
        one = len(parts) == 1
        results = [run_here(parts[0], recent, begun)] if one else run_in_processes(parts, recent, begun)
    outcome = outcome_of([one.noted for one in results], trace, offered.mode)
    busy = max(one.busy for one in results)
    facts |= {
        **_together(results, setup),
        "busiest_client": busy,
        "client_workers": len(parts),
        "in_flight_at_most": places or None,
    }
    if busy > TOO_BUSY:
        notes.append(
            f"a client process was busy {busy:.0%} of the time, and what came waited for "
            "it: times are those of this client as much as of the server; use more --client-workers"
        )
    why = next((one.why for one in results if one.why), "")
    partial = Partial(why=why, at_s=max(one.at_s for one in results)) if why else None
    return Result(outcome, facts, notes, partial, "Ctrl-C" in why)


async def _prepare(trace: Trace, setup: EndpointSetup, seed: int) -> tuple[Probed, Prompts, Facts, list[str]]:
    """Probe the server, make prompts that it accepts, and send some of them."""
    pool = pool_of(setup)
    try:
        probe = Probe(setup, pool)
        listed, root, owner = await probe.model()
        software = {"server": owner, "server_version": await probe.version()}
        prompts, facts = _prompts(trace, setup, seed, root)
        server = await probed(probe, prompts, listed=listed)
        notes = _adjusted(prompts, server, setup)
        lengths = trace.prompt_tokens[: setup.warm_up].tolist()
        failed = await probe.warm_up(server.accepted, prompts, lengths)
    finally:
        pool.close()
        await asyncio.sleep(0)
    if failed:
        notes.append(f"{len(failed)} of {len(lengths)} warm-up requests failed; the first: {failed[0]}")
    facts |= {name: stated for name, stated in software.items() if stated}
    facts |= {**server.describe(), "warm_up": len(lengths), "warm_up_failed": len(failed)}
    return server, prompts, facts, notes


def _prompts(trace: Trace, setup: EndpointSetup, seed: int, root: str) -> tuple[Prompts, Facts]:
    """Return text prompts where there is a tokenizer, token ids otherwise."""
    if setup.tokenizer is not None:
        tokenizer = load_tokenizer(setup.tokenizer)
        words = words_of(tokenizer)
        prompts = Prompts.of_words(trace, seed, words)
        rows = np.linspace(0, len(trace) - 1, min(len(trace), CHECKED_PROMPTS)).astype(int)
        wrong = check_lengths(tokenizer, prompts, np.unique(rows).tolist())
        return prompts, {"prompts": "text", "words": len(words.words), "prompts_of_wrong_length": wrong}
    if setup.api == "chat":
        raise UserError(
            "replay-flag-needed",
            "--api chat sends text, which needs --tokenizer: the model's tokenizer.json or its folder",
        )
    known = load_models().get(setup.model.name)  # served under its name in our catalogue
    vocab = setup.vocab or _vocab_at(root) or (known and known.vocab) or SAFE_VOCAB
    return Prompts(trace, seed, vocab), {"prompts": "token ids", "vocab": vocab}


def _vocab_at(root: str) -> int | None:
    """Return the vocabulary of the model's config, if the server's folder is on this machine."""
    try:
        vocab = safe_parse.json_value(safe_parse.content(Path(root) / "config.json"))["vocab_size"]
    except (OSError, ValueError, KeyError, TypeError, UserError):
        return None
    return vocab if root and isinstance(vocab, int) and vocab > 0 else None


def _adjusted(prompts: Prompts, server: Probed, setup: EndpointSetup) -> list[str]:
    """Shorten prompts by what the server adds; return notes on what the server takes."""
    notes = []
    if left_out := [name for name in ("ignore_eos", "min_tokens") if name in server.left_out]:
        notes.append(
            f"the server does not take {' and '.join(left_out)}: answers may be shorter than the trace's, "
            "see `counted` in the summary"
        )
    if server.counted_by == "even":
        notes.append(
            "the server does not say how many tokens a chunk has: they are split evenly over the chunks of "
            "an answer, so TBT per token is a guess and only ITL per chunk is measured"
        )
    if not server.counts:
        notes.append(
            "the server does not count tokens: whether prompts are as long as the trace's is not known"
        )
    elif prompts.words and server.added_tokens > 0:
        prompts.added = server.added_tokens
        what = "chat template" if setup.api == "chat" else "server"
        if short := prompts.too_short():
            notes.append(
                f"{short:,} prompts of the trace are shorter than what the {what} adds: one word each"
            )
        notes.append(
            f"the {what} adds {server.added_tokens} tokens to a prompt: texts are so many tokens shorter"
        )
    elif server.added_tokens:
        notes.append(
            f"the server counts {server.added_tokens:+d} tokens in a prompt next to those that were sent"
        )
    return notes


def _together(results: list[ClientResult], setup: EndpointSetup) -> Facts:
    """Merge the facts of all clients."""
    counted_by: Counter[str] = Counter()
    errors: dict[str, str] = {}
    for one in results:
        counted_by.update(one.counted_by)
        hidden = {kind: setup.hidden(message)[:500] for kind, message in one.first_errors.items()}
        errors = {**hidden, **errors}
    opened = sum(one.connections_opened for one in results)
    return {
        "connections_opened": opened,
        "requests_by_how_tokens_are_known": dict(counted_by),
        "first_errors": errors,
    }
