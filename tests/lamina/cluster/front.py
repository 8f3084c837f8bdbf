"""A front end of its own for tests: starts an engine, says who its processes are, and does as it is told.

front.py FOLDER wait|raise|forget|exit
"""

from __future__ import annotations

import sys
import time

from lamina import Engine, Sampling
from lamina.cluster import Layout, attention_worker
from lamina.cluster.ray import slots as ray_worker


def main(folder: str, deed: str) -> None:
    layout = Layout(2, 2, batches=3, partition="requests", oversubscribe=True)
    engine = Engine(folder, layout=layout, kv_tokens=1000)
    for length in range(1, 8):
        engine.submit(list(range(1, 1 + length)), Sampling(max_tokens=200))
    engine.step()
    assert attention_worker
    assert ray_worker
    assert "transformers" not in sys.modules, "it takes seconds to load, and only who has weights needs it"
    workers = engine.core._workers
    print(engine.core._machine._process.pid, *workers.pids, flush=True)
    if deed == "wait":
        with engine:
            while True:
                engine.step() if not engine.idle else time.sleep(0.01)
    if deed == "raise":
        with engine:
            raise ZeroDivisionError
    if deed == "forget":
        del engine, workers
        print("forgotten", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
