"""What docs/rdma.md asks to be run first on two machines with RDMA NICs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lamina import fhbn

PAIR = Path(__file__).with_name("pair.py")
LIMIT_S = 60


def test_a_pair_of_machines_measures_itself(near: str, run_there: Callable[..., Any]) -> None:
    secret = fhbn.new_secret().hex()
    command = [sys.executable, str(PAIR), "verbs", near]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as here:
        assert here.stdin is not None
        assert here.stdout is not None
        here.stdin.write(secret + "\n")
        here.stdin.close()
        address = here.stdout.readline().strip()
        there = run_there("python3", str(PAIR), "verbs", address, "--rounds", "3")
        there.write(secret)
        status, message = there.wait()
        assert status == 0, message
        assert [line.partition(":")[0] for line in message] == [
            f"{size} bytes there and back" for size in ("64", "4,096", "65,536", "1,048,576")
        ]
        assert here.wait(LIMIT_S) == 0
