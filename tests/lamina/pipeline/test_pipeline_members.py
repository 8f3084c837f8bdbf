"""Members of a batch: rosters and keepers that get changes, against plain lists."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from lamina import Sampling
from lamina.cluster.messages import Plan, decode, encode
from lamina.kv import Arena, ArenaShape
from lamina.operators import Sight
from lamina.pipeline import BatchDelta, BatchRows, Joined, KvSlots
from lamina.pipeline.batch_rows import ALL, NO_LOGPROBS, NO_PARENT
from lamina.serve.sequence_table import DeltaBuilder, SequenceTable

BATCHES, CAPACITY = 2, 1000
SHAPE = ArenaShape(4, 1, 1, torch.float32, sights=(Sight(), Sight(window=4), Sight(chunk=3), Sight(window=4)))


def sent(delta: BatchDelta) -> BatchDelta:
    """As a worker has it: in memory that cannot be written to."""
    plan = decode(encode(Plan(0, 0, 0, True, delta)), "the front end")
    assert isinstance(plan, Plan)
    return plan.delta


@dataclass
class Sequence:
    """One as the model has it. What its KV is, is told by cells: a number for every token ever computed."""

    name: int
    row: int
    family: int
    token: int
    cells: list[int]
    made: int = 0
    pool: int = 0


@dataclass
class World:
    """Engine's side, workers' side, and the model, batch by batch."""

    data: st.DataObject
    running: SequenceTable = field(default_factory=lambda: SequenceTable(BATCHES))
    rosters: list[BatchRows] = field(default_factory=lambda: [BatchRows() for _ in range(BATCHES)])
    batches: list[list[Sequence]] = field(default_factory=lambda: [[] for _ in range(BATCHES)])
    made_up: int = 0

    def __post_init__(self) -> None:
        self.arena = Arena(SHAPE, CAPACITY)
        self.kv_slots = KvSlots(self.arena, BATCHES)
        self.pending = [DeltaBuilder() for _ in range(BATCHES)]

    def number(self) -> int:
        """Return a new number."""
        self.made_up += 1
        return self.made_up

    def swap(self, batch: int) -> None:
        """The beams of one family continue each other's KV, as a search decides."""
        families = sorted({each.family for each in self.batches[batch]})
        if not families:
            return
        family = self.data.draw(st.sampled_from(families))
        beams = [each for each in self.batches[batch] if each.family == family]
        parents = self.data.draw(st.lists(st.sampled_from(beams), min_size=len(beams), max_size=len(beams)))
        pending, inherited = self.pending[batch], {parent.name: list(parent.cells) for parent in beams}
        new: list[tuple[int, list[int], int]] = []
        taken: set[int] = set()
        for beam, parent in zip(beams, parents, strict=True):
            name = parent.name if parent.name not in taken else self.number()
            taken.add(parent.name)
            if name != parent.name:
                pending.forks.append((parent.name, name, ALL))
            token = self.number()
            pending.renamed.append((beam.name, name, token))
            new.append((name, list(inherited[parent.name]), token))
        pending.released += [beam.name for beam in beams if beam.name not in taken]
        for beam, (name, cells, token) in zip(beams, new, strict=True):
            beam.name, beam.cells, beam.token = name, cells, token
            self.running.name[beam.row], self.running.token[beam.row] = name, token

    def leave(self, batch: int, share: float) -> None:
        lost = [each for each in self.batches[batch] if self.data.draw(st.floats(0, 1)) < share]
        rows = [each.row for each in lost]
        self.pending[batch].leave(self.running.name[rows])
        self.running.leave(batch, rows)
        self.running.close(rows)
        self.batches[batch] = [each for each in self.batches[batch] if each not in lost]

    def join(self, batch: int) -> list[tuple[int, int]]:
        """A family: the first brings its text, the others share some of it. (name, tokens shared) of each."""
        tokens, width = self.data.draw(st.integers(0, 9)), self.data.draw(st.integers(1, 4))
        shared, pool, family = self.data.draw(st.integers(0, tokens)), self.number() % 3, self.number()
        wish, rows, reported = Sampling(max_tokens=5, temperature=0.5, top_k=family, n=width), [], []
        parent: Sequence | None = None
        for sample in range(width):
            row = self.running.open(family, wish, seed=2**64 - 1 - sample, stops=(1, 2), most=None)
            name, known = self.number(), shared if parent else 0
            cells = [
                *(parent.cells[:known] if parent else []),
                *(self.number() for _ in range(tokens - known)),
            ]
            new = Sequence(name, row, family, self.number(), cells, pool=pool)
            self.running.name[row], self.running.token[row], self.running.position[row] = (
                name,
                new.token,
                tokens,
            )
            self.pending[batch].joining.append((row, parent.name if parent else NO_PARENT, known, pool))
            parent = parent or new
            rows.append(row)
            reported.append((name, known))
            self.batches[batch].append(new)
        self.running.join(batch, rows)
        return reported

    def launch(self, batch: int, arriving: list[tuple[int, int]]) -> None:
        """The change on its way: workers must know what the model knows."""
        delta = sent(self.pending[batch].build(self.running))
        self.pending[batch] = DeltaBuilder()
        arrivals = self.kv_slots.apply(batch, delta)
        self.rosters[batch].apply(delta)
        assert [(each.name, each.tokens - len(each.slots[0])) for each in arrivals] == arriving
        for each in arrivals:
            for space, sight in enumerate(SHAPE.spaces):
                slots = self.arena.spaces[space].slab.indices(each.name).tolist()
                own = len(each.slots[space])
                assert each.slots[space].tolist() == slots[len(slots) - own :]
                assert own == min(len(each.slots[0]), each.tokens - sight.first(each.tokens))
                assert each.within(space, each.tokens - own, each.tokens).size == own
                assert not each.within(space, 0, each.tokens - own).size
        self.check(batch)
        assert self.kv_slots.extend(batch).tolist() == self.column(batch, "name")
        for one in self.batches[batch]:
            one.cells.append(self.number())
        self.check_slots()

    def land(self, batch: int) -> None:
        """Everybody has one token more."""
        tokens = np.array([self.number() for _ in self.batches[batch]], np.int64)
        self.rosters[batch].advance(tokens)
        rows = self.running.batches[batch]
        self.running.record(rows, tokens)
        for one, token in zip(self.batches[batch], tokens.tolist(), strict=True):
            one.token, one.made = token, one.made + 1
        self.check(batch)

    def column(self, batch: int, name: str) -> list[int]:
        return [getattr(each, name) for each in self.batches[batch]]

    def check(self, batch: int) -> None:
        rows, model = self.rosters[batch], self.batches[batch]
        assert len(rows) == len(model)
        assert rows.columns.name.tolist() == self.kv_slots.names(batch).tolist() == self.column(batch, "name")
        assert rows.columns.token.tolist() == self.column(batch, "token")
        assert rows.columns.pool.tolist() == self.column(batch, "pool")
        assert rows.columns.position.tolist() == [len(each.cells) for each in model]
        assert self.running.batches[batch].tolist() == self.column(batch, "row")

    def check_slots(self) -> None:
        """Slots are shared where cells are, and nowhere else; an ended sequence has none."""
        self.arena.check_integrity()
        live = [each for batch in self.batches for each in batch]
        assert len(self.arena.spaces) == len(SHAPE.spaces) == 3
        for space, sight in zip(self.arena.spaces, SHAPE.spaces, strict=True):
            assert sorted(space.slab.requests().tolist()) == sorted(each.name for each in live)
            slot_of: dict[int, int] = {}
            for each in live:
                observed = each.cells[sight.first(len(each.cells)) :]
                for cell, slot in zip(observed, space.slab.indices(each.name).tolist(), strict=True):
                    assert slot_of.setdefault(cell, slot) == slot
            assert len(set(slot_of.values())) == len(slot_of) == space.slab.used


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_workers_track_batches_and_kv(data: st.DataObject) -> None:
    world = World(data)
    for _ in range(data.draw(st.integers(1, 8))):
        batch = data.draw(st.integers(0, BATCHES - 1))
        if data.draw(st.booleans()):
            world.swap(batch)
        world.leave(batch, data.draw(st.sampled_from([0.0, 0.3, 1.0])))
        arriving = [reported for _ in range(data.draw(st.integers(0, 2))) for reported in world.join(batch)]
        world.launch(batch, arriving)
        world.land(batch)
    for batch in range(BATCHES):
        world.leave(batch, 2.0)
        world.launch(batch, [])
    assert world.arena.used == 0


def test_two_beams_that_swap_do_not_lose_each_other() -> None:
    kv_slots, rows = KvSlots(Arena(ArenaShape(1, 1, 1, torch.float32), 20), 1), BatchRows()
    running, pending = SequenceTable(), DeltaBuilder()
    for name in (1, 2):
        row = running.open(0, Sampling(beams=2), 0, (), 4)
        running.name[row] = name
        running.position[row] = 2 + name
        pending.joining.append((row, NO_PARENT, 0, 0))
    delta = pending.build(running)
    kv_slots.apply(0, delta)
    rows.apply(delta)
    saved = {name: kv_slots.arena.spaces[0].slab.indices(name).tolist() for name in (1, 2)}
    swapped = BatchDelta(renamed=np.array([[1, 2, 70], [2, 1, 80]], np.int64))
    kv_slots.apply(0, swapped)
    rows.apply(swapped)
    assert rows.columns.name.tolist() == kv_slots.names(0).tolist() == [2, 1]
    assert rows.columns.token.tolist() == [70, 80]
    assert {name: kv_slots.arena.spaces[0].slab.indices(name).tolist() for name in (1, 2)} == saved


def test_expected_sequences_have_slots_until_dropped() -> None:
    kv_slots = KvSlots(Arena(ArenaShape(1, 1, 1, torch.float32), 20), 1)

    def expected(*rows: tuple[int, int, int, int, int]) -> BatchDelta:
        return BatchDelta(expected=np.array(rows, np.int64))

    assert not kv_slots.apply(0, expected((1, NO_PARENT, 0, 9, 0)))
    # Of the samples of one prompt the second one has made two tokens more.
    first, second = kv_slots.expect(expected((1, NO_PARENT, 0, 9, 0), (2, 1, 9, 11, 0)))
    assert (len(first.slots[0]), len(second.slots[0]), kv_slots.arena.used) == (9, 2, 11)
    both = Joined(**{name: np.array(column) for name, column in JOINING.items()})
    assert kv_slots.apply(0, BatchDelta(joined=both)) == [], "they have them already"
    assert kv_slots.extend(0).tolist() == [1, 2]
    assert kv_slots.arena.used == 13
    kv_slots.expect(expected((3, NO_PARENT, 0, 4, 0), (4, NO_PARENT, 0, 3, 0)))
    kv_slots.apply(0, BatchDelta(dropped=np.array([[3, 0]])))
    assert kv_slots.arena.used == 16
    kv_slots.expect_none()
    assert kv_slots.arena.used == 13, "those in a batch stay"
    kv_slots.expect_none()
    kv_slots.forget(0)
    assert kv_slots.arena.used == 0
    kv_slots.arena.check_integrity()


# Two sequences, the second of which has the first one's prompt of ten tokens.
JOINING = {
    **{name: [0, 0] for name in ("token", "made", "pool", "top_k", "most", "seed")},
    **{name: [0.0, 0.0] for name in ("temperature", "top_p")},
    "name": [1, 2],
    "position": [9, 11],
    "parent": [NO_PARENT, 1],
    "shared": [0, 9],
}


def test_a_change_is_not_undone_by_the_next_one() -> None:
    """What was heard may lie in a message that cannot be written to."""
    rows = BatchRows()
    running, pending = SequenceTable(), DeltaBuilder()
    pending.joining.append((running.open(0, Sampling(), 0, (), None), NO_PARENT, 0, 2))
    rows.apply(sent(pending.build(running)))
    rows.advance(np.frombuffer(np.array([5], np.int64).tobytes(), np.int64))
    rows.apply(BatchDelta(renamed=np.array([[0, 9, 6]], np.int64)))
    now = rows.columns
    assert (now.name.tolist(), now.token.tolist(), now.pool.tolist()) == ([9], [6], [2])


def chosen_with(most: list[int], vocab: int = 7) -> tuple[NDArray[np.float32], BatchRows]:
    rows, running, pending = BatchRows(), SequenceTable(), DeltaBuilder()
    for name, each in enumerate(most):
        row = running.open(0, Sampling(), 0, (), None if each == NO_LOGPROBS else each)
        running.name[row] = name
        pending.joining.append((row, NO_PARENT, 0, 0))
    rows.apply(pending.build(running))
    return np.random.default_rng(0).normal(size=(len(most), vocab)).astype(np.float32), rows


def test_logprobs_of_the_likeliest_tokens() -> None:
    logits, rows = chosen_with([NO_LOGPROBS, 2, NO_LOGPROBS, 0])
    choice = rows.choose(torch.from_numpy(logits))
    assert choice.tokens.tolist() == logits.argmax(1).tolist()
    reported = choice.revealed
    assert reported is not None
    assert reported.rows.tolist() == [1, 3]
    requested = torch.log_softmax(torch.from_numpy(logits[[1, 3]]), -1)
    assert reported.tokens.tolist() == requested.topk(2).indices.tolist(), (
        "as many as the one who asks for most"
    )
    np.testing.assert_allclose(reported.logs, requested.topk(2).values)
    np.testing.assert_allclose(reported.chosen, requested.max(1).values)


def test_logprobs_of_none_and_of_more_than_the_vocabulary() -> None:
    logits, rows = chosen_with([NO_LOGPROBS, NO_LOGPROBS])
    assert rows.choose(torch.from_numpy(logits)).revealed is None
    logits, rows = chosen_with([50])
    reported = rows.choose(torch.from_numpy(logits)).revealed
    assert reported is not None
    assert reported.tokens.shape == (1, 7)
