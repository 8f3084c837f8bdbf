"""Devices that are not here: when their work would end, by a clock that tests turn."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from lamina._native import Slab
from lamina.attention.emulated import EmulatedAttention
from lamina.cluster.recorders import DeviceRecorder
from lamina.convert.emulated import emulated, slices_on
from lamina.emulation import EmulatedDevice, Emulation, latest, moments
from lamina.pipeline.options import ModelFacts


@dataclass
class Clock:
    """A clock that advances during sleeps, and on request."""

    ns: int = 0
    slept: list[int] = field(default_factory=list)

    def now(self) -> int:
        return self.ns

    def sleep(self, seconds: float) -> None:
        self.slept.append(round(seconds * 1e9))
        self.ns += self.slept[-1]


def table(*values: int) -> Any:
    return np.array(values, np.int64)


MODEL = Emulation(
    layers=2,
    heads=4,
    ranks=2,
    pools=1,
    first_slice=table(0, 100, 110, 120, 130),
    mid_slice=table(0, 200, 210, 220, 230),
    last_slice=table(0, 300, 310, 320, 330),
    attention=table(0, 50, 60, 70, 80),
    per_token=np.array([0.0, 2.0, 2.0, 2.0, 2.0]),
    combine=5,
    q_lead=table(0, 10, 10, 10, 10),
    q_transfer=table(0, 30, 30, 30, 30),
    kv_transfer=table(0, 40, 40, 40, 40),
    out_transfer=table(0, 20, 20, 20, 20),
    migration=table(0, 7, 7, 7, 7),
)


def device(model: Emulation = MODEL) -> tuple[EmulatedDevice, Clock]:
    clock = Clock()
    return EmulatedDevice(model, clock.now, clock.sleep), clock


def test_the_host_is_one_piece_ahead_and_waits_no_longer() -> None:
    one, clock = device()
    assert one.run(1000, 100) == 1100
    assert clock.slept == []  # it may prepare the next one
    clock.ns = 1040
    assert one.run(0, 100) == 1200
    assert clock.slept == [60]
    assert one.run(1500, 100, 1700) == 1700  # it needs something besides, at its end


def test_lateness_of_one_piece_is_not_the_next_ones() -> None:
    one, clock = device()
    one.run(0, 100)
    clock.ns = 5000  # another process had the core
    assert [one.run(0, 100) for _ in range(3)] == [200, 300, 400]
    assert clock.slept == []


def test_an_iterations_end_says_whether_the_host_was_there_in_time() -> None:
    one, clock = device()
    one.run(0, 100)
    clock.ns = 90
    one.end_iteration()
    one.run(0, 100)
    clock.ns = 250
    one.end_iteration()
    assert one.ends == [(10, 0), (-50, 50)]


def test_records_are_of_the_devices_time_and_not_of_the_hosts() -> None:
    one, clock = device()
    recorder = DeviceRecorder(one)
    clock.ns = 10**6
    one.run(100, 50)
    one.run(400, 50)  # another part of the same
    recorder.note(0, 0, 0, 1, recorder.now(), recorder.now())
    one.end_iteration()
    (message,) = recorder.messages()
    assert message.rows.tolist() == [[0, 0, 0, 1, 100, 450]]
    assert message.busy_ns == 350
    assert message.ends.tolist() == [[450 - 10**6, 10**6 - 450]]
    recorder.forget()
    (message,) = recorder.messages()
    assert not len(message.rows) + len(message.ends)


@pytest.mark.parametrize(
    ("share", "pools", "takes"), [(1.0, 1, 60 + 2 * 30), (0.5, 1, 60), (1.0, 2, 80 + 60)]
)
def test_attention_takes_as_long_as_its_tokens_and_its_share(share: float, pools: int, takes: int) -> None:
    slab = Slab(100)
    for name, tokens in ((7, 11), (8, 21)):
        slab.allocate(name, tokens)  # the newest included
    one, _ = device(msgspec.structs.replace(MODEL, pools=pools))
    worker = EmulatedAttention(one, 2, share)
    worker.plan(slab, np.array([7, 8]))
    worker.begin(0, moments(2, 2, 1000))
    out = worker.finish(0, moments(2, 2, 1010), moments(2, 2, 1010))
    back = 1000 + takes + 5 + 20
    assert (tuple(out.shape), latest(out)) == ((2, 2, 1), back)
    # The new tokens' k and v come after all else is done.
    worker.begin(1, moments(2, 2, 0))
    assert latest(worker.finish(1, moments(2, 2, 9000), moments(2, 2, 9000))) == 9000 + 5 + 20


def test_slices_begin_when_all_is_there_and_say_when_theirs_is() -> None:
    one, clock = device()
    first, middle, last = slices_on(one)
    clock.ns = 1000
    q, state = first.query((torch.zeros(2), torch.zeros(2)), None)
    assert (tuple(q.shape), latest(q)) == ((2, 2, 1), 1110 - 10 + 30)
    k, _, state = first.keyvalue(state)
    context = first.rest(state)
    assert (latest(k), latest(*context)) == (1110 + 40, 1110 + 7)
    attended = torch.cat([moments(1, 2, 1300), moments(1, 2, 2000)])  # of two workers
    q, state = middle.query(context, attended)
    assert latest(q) == 2000 + 210 - 10 + 30
    _, _, state = middle.keyvalue(state)
    logits = last.logits(middle.rest(state), moments(2, 2, 0))
    assert one.free == clock.ns == 2210 + 7 + 310  # and not before the context has come
    assert logits.argmax(-1).tolist() == [0, 0]


def test_of_the_model_nothing_is_in_memory() -> None:
    facts = ModelFacts.of(emulated(MODEL))
    assert (facts.weight_bytes, facts.state_bytes, facts.layers, facts.heads) == (0, 0, 2, 4)
    assert [op.heads for op in emulated(MODEL).sharded(2).attentions] == [2, 2]
