"""Workers' records in the outcome of a live replay."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from laminabench.systems.live.lamina.records import Recorded


def test_a_replica_is_as_busy_as_its_busiest_worker() -> None:
    workers = ("a/model-0", "a/model-1", "b/model-0", "a/attention-0", "a/attention-1")
    none = np.array([])
    known = SimpleNamespace(batch=none, iteration=none, model_s=none, attention_s=none)
    records: Any = SimpleNamespace(
        workers=workers, replica_of=[0, 0, 1, -1, -1], busy_s=np.array([2.0, 3.0, 5.0, 1.0, 4.0])
    )
    records.of_iterations = known
    columns = dict.fromkeys(("batch", "iteration", "start_s", "model_s", "attention_s"), none)
    tables = SimpleNamespace(iterations=lambda: columns, outcome=lambda **columns: columns)
    log: Any = SimpleNamespace(tables=tables, faults=(), peak_kv_tokens=0)
    outcome: Any = Recorded(records, [], 0.0).outcome(log, 1)
    assert outcome["replica_busy_s"].tolist() == [3.0, 5.0]
    assert outcome["attention_busy_s"] == 4.0
