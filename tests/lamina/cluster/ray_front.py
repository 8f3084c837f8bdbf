"""A front end of its own, on a Ray cluster: reports that it works, and works until it is killed.

ray_front.py FOLDER ADDRESS
"""

from __future__ import annotations

import sys

from lamina import Engine, Sampling
from lamina.cluster import Layout
from lamina.cluster.ray.machine import RayMachine


def main(folder: str, address: str) -> None:
    assert "ray" not in sys.modules, "it is loaded by those who ask for it"
    machine = RayMachine(address)
    engine = Engine(folder, layout=Layout(network="gloo"), machine=machine, kv_tokens=1000)
    reported = False
    while True:
        engine.submit([1, 2, 3], Sampling(max_tokens=200))
        while not engine.idle:
            engine.step()
            if not reported:
                print(*(spot.pid for spot in machine.where(list(machine._started))), flush=True)
                reported = True


if __name__ == "__main__":
    main(*sys.argv[1:])
