"""What workers did before they were wanted is in no record."""

from __future__ import annotations

import pytest
from cluster_support import Start, prompts, shared

from lamina import Sampling
from lamina.cluster import Layout
from lamina.pipeline import check_schedule


@pytest.mark.parametrize("layout", [shared(1, 1), shared(2, 1, batches=3)], ids=["2-batches", "3-batches"])
def test_workers_forget_the_warm_up(layout: Layout, start: Start) -> None:
    engine = start(layout)
    engine.warm_up(5, prompt_tokens=30)
    assert engine.warm_up_iterations >= 6
    empty = engine.records()
    assert empty is not None
    assert len(empty) == 0
    assert not empty.busy_s.any()
    for prompt in prompts(4, 9, 6):
        engine.submit(prompt, Sampling(max_tokens=4, ignore_eos=True))
    steps = []
    while not engine.idle:
        steps.append(engine.step())
    records = engine.records()
    assert records is not None
    assert not check_schedule(records, engine.schedule)
    reported = {(step.batch, step.iteration) for step in steps if step.size}
    known = records.of_iterations
    assert set(zip(known.batch.tolist(), known.iteration.tolist(), strict=True)) == reported
    # In their turns from the first batch on, as of an engine that has just been made.
    assert [step.batch for step in steps if step.size][: engine.schedule.batches] == [
        *range(engine.schedule.batches)
    ]
