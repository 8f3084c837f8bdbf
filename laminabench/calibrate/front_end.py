"""Measurement of the engine's front end: its HTTP server's work for requests, from events at both ends."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import multiprocessing
import os
import signal
import threading
import time
from collections import defaultdict
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
import torch

from lamina.http.address import bound
from lamina.http.app import Serving
from lamina.http.driver import Ticket
from lamina.http.service import Meter, Service
from lamina.serve import Engine, Step
from laminabench.calibrate.rounds import FEWEST_ROUNDS, Point
from laminabench.catalog.cost_terms import Float64
from laminabench.systems.live.endpoint.attempts import Attempts
from laminabench.systems.live.endpoint.client import pool_of
from laminabench.systems.live.endpoint.records import Records
from laminabench.systems.live.endpoint.request import Accepted, request
from laminabench.systems.live.endpoint.setup import Address, Behind, EndpointSetup, Served
from laminabench.systems.live.endpoint.wire import Pool
from laminabench.systems.live.lamina.starting import on_cores, refused
from laminabench.util.errors import UserError

# Requests that are sent at once.
BURSTS = (1, 4, 16)
PROMPT, OUTPUT = 16, 6
TIMEOUT_S = 300.0


class Events(NamedTuple):
    """A server's events, by the monotonic clock that all processes of a machine share."""

    first: list[tuple[float, float]]  # a request's arrival, and the end of the step of its first token
    steps: list[tuple[float, float, int, int]]  # start, end, size, and how many joined


class Burst(NamedTuple):
    """When a client began to send requests, and got their first tokens, each in the order of time."""

    sent_s: Float64
    first_s: Float64


def measure(source: Any, seconds: float) -> dict[Point, list[float]]:
    """Measure an engine in one process behind its HTTP API for about `seconds`, by the size of bursts.

    `taken in`: from a request's sending to its arrival, `begun` to its step, `out`: from the end of the step
    of its first token until the client has that. `between steps`: by batch size.
    """
    context = multiprocessing.get_context("spawn")
    near_end, far_end = context.Pipe()
    server = context.Process(target=_serve, args=(source, far_end), daemon=True)
    server.start()
    far_end.close()
    try:
        bursts = asyncio.run(_bursts(received(near_end), seconds))
        near_end.send(None)
        events = Events(*received(near_end))
    finally:
        near_end.close()
        server.kill()
        server.join()  # waits: it has been killed
    return points(bursts, events)


def received(pipe: Connection) -> Any:
    """Return the server's next message; a UserError if none comes."""
    with contextlib.suppress(EOFError):
        if pipe.poll(TIMEOUT_S):
            return pipe.recv()  # waits: it has come
    raise UserError(
        "calibrate-server",
        f"the engine's server has ended, or was silent for {TIMEOUT_S:g} s: measure again on an idle machine",
    )


def points(bursts: list[Burst], events: Events) -> dict[Point, list[float]]:
    """Return all points of bursts by what their server noted meanwhile."""
    taken: dict[Point, list[float]] = defaultdict(list)
    for sent_s, first_s in bursts:
        here, until = sent_s[0], first_s[-1]
        arrived, ended = np.array([pair for pair in events.first if here <= pair[0] <= until]).T
        size = len(sent_s)
        taken["taken in", size].append(float(np.mean(np.sort(arrived) - sent_s)))
        taken["out", size].append(float(np.mean(first_s - np.sort(ended))))
        steps = list(itertools.islice((step for step in events.steps if step[0] >= here), OUTPUT))
        taken["begun", size].append(steps[0][0] - here)
        gaps = [
            start - end
            for (_, end, *_), (start, _, running, joined) in itertools.pairwise(steps)
            if running == size and not joined
        ]
        if gaps:
            taken["between steps", size].append(float(np.median(gaps)))
    return taken


def _serve(source: Any, pipe: Connection) -> None:
    """Serve in a process of its own until the other end of the pipe says so, and send the events."""
    events = Events([], [])

    class Noted(Meter):
        """A meter that notes first tokens and steps."""

        def stepped(self, step: Step) -> None:
            super().stepped(step)
            if step.size:
                events.steps.append((step.started_s, step.ended_s, step.size, len(step.joined)))

        def reported(self, ticket: Ticket, tokens: int, at_s: float) -> None:
            if tokens and not ticket.last_s:
                events.first.append((ticket.arrived_s, at_s))
            super().reported(ticket, tokens, at_s)

    def end() -> None:
        # The other process sends one message, or has ended.
        with contextlib.suppress(EOFError):
            pipe.recv()  # waits: the other end closes at the latest when its process ends
        os.kill(os.getpid(), signal.SIGTERM)

    tokens = BURSTS[-1] * (PROMPT + OUTPUT)
    with (
        refused(),
        on_cores(1),
        bound("127.0.0.1", 0) as sock,
        Engine(
            source,
            dtype=torch.bfloat16,
            max_sequences=BURSTS[-1],
            kv_tokens=tokens,
            load_format="dummy",
            threads=1,
        ) as engine,
    ):
        service = Service(engine, "model", meter_kind=Noted)
        threading.Thread(target=end, daemon=True).start()
        Serving(service, sock, ready=lambda: pipe.send(sock.getsockname()[1])).run()
    pipe.send(tuple(events))


async def _bursts(port: int, seconds: float) -> list[Burst]:
    """Send bursts in turns; the first round opens connections and is not returned."""
    setup = EndpointSetup(Behind(Address("http", "127.0.0.1", port)), Served("model"))
    pool, bursts, began = pool_of(setup), [], time.monotonic()
    body = request(setup, setup.path, Accepted().body(setup, [1] * PROMPT, OUTPUT))
    try:
        rounds = 0
        while rounds <= FEWEST_ROUNDS or time.monotonic() - began < seconds:
            for size in BURSTS[:: 1 if rounds else -1]:
                burst = await _burst(pool, body, size)
                bursts += [burst] if rounds else []
            rounds += 1
    finally:
        pool.close()
        await asyncio.sleep(0)
    return bursts


async def _burst(pool: Pool, body: bytes, size: int) -> Burst:
    """Send so many requests at once, and wait for all answers."""
    records = Records(np.arange(size))
    attempts = Attempts(pool, records, TIMEOUT_S, TIMEOUT_S, retries=0)
    sent = [(place, attempts.begin(place, body, time.monotonic())) for place in range(size)]
    await asyncio.gather(*(attempts.serve(place, body, begun) for place, begun in sent))
    places, at_s = np.array(records.chunk_place), np.array(records.chunk_at_s)
    first_s = [at_s[places == place].min() for place in range(size)]
    return Burst(np.sort(records.calls["due_s"]), np.sort(first_s))
