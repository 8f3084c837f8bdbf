"""What must hold of any replay, seen in its tables alone."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from sim_cases import in_ticks, native, random_arguments

from laminabench import _sim

SEEDS = range(24)
# They have every mode, preemptions and rejected requests.
FAST = 6


class Replay:
    """A random replay's arguments and tables, all times in ticks."""

    def __init__(self, given: dict[str, Any], tables: dict[str, Any]) -> None:
        self.given = given
        self.tables = tables
        self.requests = {name: np.array(column) for name, column in tables["requests"].items()}
        self.iterations = {name: np.array(column) for name, column in tables["iterations"].items()}
        self.end = self.iterations["start_s"] + self.iterations["duration_s"]
        of = zip(self.iterations["batch"].tolist(), self.iterations["iteration"].tolist(), strict=True)
        self.row_of = {key: row for row, key in enumerate(of)}
        block = given["block_tokens"]
        self.rejected = (
            -(-(given["prompt"] + given["output"]) // block) * block
            > given["tokens_per_pool"] // block * block
        )

    def stints(self) -> dict[int, list[tuple[int, int, int]]]:
        """(batch, first, last) of every uninterrupted stretch of every request that ran."""
        results: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
        for request, *stint in zip(*self.tables["stints"].values(), strict=True):
            results[request].append((stint[0], stint[1], stint[2]))
        columns = ("batch", "first_iteration", "last_iteration", "preemptions")
        rows = zip(*(self.tables["requests"][name] for name in columns), strict=True)
        for request, (batch, first, last, preemptions) in enumerate(rows):
            if batch >= 0 and not preemptions:
                results[request].append((batch, first, last))
        return results


@pytest.fixture(
    scope="module",
    params=[pytest.param(seed, marks=[pytest.mark.long] if seed >= FAST else []) for seed in SEEDS],
)
def replay(request: pytest.FixtureRequest) -> Replay:
    given = random_arguments(request.param)
    return Replay(given, in_ticks(native(**given)))


def test_the_replays_are_worth_looking_at() -> None:
    replays = [Replay(given, in_ticks(native(**given))) for given in map(random_arguments, SEEDS)]
    fast = replays[:FAST]
    assert any(r.requests["preemptions"].sum() for r in fast)
    assert any(r.rejected.any() for r in fast)
    assert {r.given["mode"] for r in fast} == {"saturate", "open", "closed"}
    assert sum(r.requests["preemptions"].sum() > 0 for r in replays) >= 5
    assert sum(bool(r.rejected.any()) for r in replays) >= 3
    assert sum(r.given["batches"] > 1 for r in replays) >= 10
    assert {r.given["mode"] for r in replays} == {"saturate", "open", "closed"}


def test_every_request_is_done_or_was_too_large(replay: Replay) -> None:
    times = [replay.requests[name] for name in ("arrival_s", "admitted_s", "first_token_s", "finished_s")]
    for earlier, later in pairwise(times):
        assert (later >= 0).tolist() == (~replay.rejected).tolist()
        assert np.all(earlier[~replay.rejected] <= later[~replay.rejected])


def test_as_many_tokens_come_out_as_were_asked_for(replay: Replay) -> None:
    assert replay.iterations["size"].sum() == replay.given["output"][~replay.rejected].sum()


def test_iterations_of_a_batch_follow_one_another(replay: Replay) -> None:
    for batch in range(replay.given["batches"]):
        own = replay.iterations["batch"] == batch
        assert replay.iterations["iteration"][own].tolist() == list(range(own.sum()))
        assert np.all(replay.iterations["start_s"][own][1:] >= replay.end[own][:-1])
    assert np.all(replay.iterations["duration_s"] >= replay.iterations["host_s"])
    assert np.all(replay.iterations["size"] >= 1)
    assert np.all(replay.end <= replay.tables["end_s"])


def test_memory_is_never_overfull(replay: Replay) -> None:
    # At its end an iteration has stored one more token of each of its requests.
    retained = replay.iterations["kv_tokens"] + replay.iterations["size"]
    # Ends before starts: at a boundary, what leaves makes room for what joins. An iteration that takes no
    # time would end before it started, so it counts by itself.
    lasting = replay.iterations["duration_s"] > 0
    times = np.concatenate([replay.end[lasting], replay.iterations["start_s"][lasting]])
    changes = np.concatenate([-retained[lasting], retained[lasting]])
    order = np.lexsort((changes, times))
    stored = np.cumsum(changes[order])
    most = max(int(stored.max(initial=0)), int(retained.max(initial=0)))
    assert most <= replay.tables["peak_kv_tokens"] <= replay.tables["kv_capacity_tokens"]
    block, pools = replay.given["block_tokens"], replay.given["pools"]
    assert replay.tables["kv_capacity_tokens"] == replay.given["tokens_per_pool"] // block * block * pools


def test_stints_say_when_each_token_came(replay: Replay) -> None:
    size, joined, kv = (np.zeros(len(replay.end), np.int64) for _ in range(3))
    for request, stints in replay.stints().items():
        row = {name: int(column[request]) for name, column in replay.requests.items()}
        assert len(stints) == row["preemptions"] + 1
        assert stints[0][1] == row["first_iteration"]
        assert (stints[-1][0], stints[-1][2]) == (row["batch"], row["last_iteration"])
        produced, clock = 0, row["arrival_s"]
        for batch, first, last in stints:
            at = [replay.row_of[batch, iteration] for iteration in range(first, last + 1)]
            assert replay.iterations["start_s"][at[0]] >= clock
            clock = int(replay.end[at[-1]])
            size[at] += 1
            joined[at[0]] += 1
            kv[at] += int(replay.given["prompt"][request]) + produced + np.arange(len(at))
            produced += len(at)
        assert produced == replay.given["output"][request]
        first_row = replay.row_of[stints[0][0], stints[0][1]]
        assert row["admitted_s"] == replay.iterations["start_s"][first_row]
        assert row["first_token_s"] == replay.end[first_row]
        assert row["finished_s"] == clock
    assert size.tolist() == replay.iterations["size"].tolist()
    assert joined.tolist() == replay.iterations["joined"].tolist()
    assert kv.tolist() == replay.iterations["kv_tokens"].tolist()


def test_closed_is_never_fuller_than_its_concurrency(replay: Replay) -> None:
    if replay.given["mode"] != "closed":
        return
    came, left = (replay.requests[name][~replay.rejected] for name in ("arrival_s", "finished_s"))
    times = np.concatenate([came, left])
    changes = np.concatenate([np.ones(len(came), np.int64), -np.ones(len(left), np.int64)])
    order = np.lexsort((changes, times))
    assert np.cumsum(changes[order]).max(initial=0) <= replay.given["concurrency"]


def test_workers_are_busy_with_iterations_only(replay: Replay) -> None:
    assert sum(replay.tables["replica_busy_s"]) == replay.iterations["model_s"].sum()
    assert replay.tables["attention_busy_s"] == replay.iterations["attention_s"].sum()
    busiest = max(*replay.tables["replica_busy_s"], replay.tables["attention_busy_s"])
    assert busiest <= replay.tables["end_s"]


def as_bytes(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: as_bytes(inner) for name, inner in value.items()}
    return value.tobytes() if isinstance(value, np.ndarray) else value


@pytest.mark.long(but=["0"])
@pytest.mark.parametrize("seed", range(6))
def test_equal_inputs_give_equal_tables(seed: int) -> None:
    given = random_arguments(seed, record_to=2**40)
    assert as_bytes(native(**given)) == as_bytes(native(**given))


def test_a_misspelt_cost_is_an_error() -> None:
    costs = _sim.Costs(4)
    for bound in (costs, costs.serving, costs.prompts, costs.windows, _sim.Deployment("serial", "grow")):
        with pytest.raises(AttributeError):
            bound.host_fixd = 1
    with pytest.raises(ValueError, match="mid_slice"):
        costs.mid_slice = np.zeros(3, np.int64)
