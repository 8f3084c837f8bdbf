"""`laminabench bench fhbn` over soft-RoCE: its times are the emulation's, and nothing follows from them."""

from __future__ import annotations

import json
import subprocess
import sys

LIMIT_S = 150  # of a command in an emulated machine


def test_verbs_has_rows_like_any_engine() -> None:
    requests = ["--engines", "verbs", "--sizes", "64,64K", "--seconds", "1"]
    command = [sys.executable, "-m", "laminabench", "bench", "fhbn", *requests, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert [(row["engine"], row["bytes"]) for row in result["rows"]] == [("verbs", 64), ("verbs", 65536)]
    for row in result["rows"]:
        assert 0 < row["rtt_us_min"] <= row["rtt_us_p50"] <= row["rtt_us_p99"]
        assert row["gb_per_s"] > 0
        assert row["caveat"] == "verified on soft-RoCE, not on a NIC"
