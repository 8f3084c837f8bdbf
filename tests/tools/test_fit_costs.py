"""Packaged cost sets are what the measurements give that they are fitted to."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from fit_costs import fit, vidur_gemm
from laminabench.catalog.cost_file import load_costs, to_toml
from laminabench.catalog.find_model import model
from laminabench.catalog.hardware import device
from laminabench.catalog.importing.vidur import VIDUR_OPS
from laminabench.catalog.step import model_step_seconds


def test_vidur_operators_get_the_shapes_of_their_shard(tmp_path):
    columns = {f"time_stats.{name}.median": [1.0, 3.0, 10.0] for name in VIDUR_OPS}
    table = pd.DataFrame({"num_tokens": [8, 8, 8], "num_tensor_parallel_workers": [1, 1, 4], **columns})
    table.to_csv(tmp_path / "mlp.csv")
    samples = vidur_gemm(tmp_path / "mlp.csv", model("llama2-70b"))
    shapes = set(zip(samples["tp"], samples["n"], samples["k"], strict=True))
    for tp in (1, 4):
        assert shapes >= {(tp, gemm.n, gemm.k) for gemm in model("llama2-70b").layer_gemms(tp)}
    assert len(samples) == 8  # repetitions are merged by their median
    assert set(samples.seconds.tolist()) == {2e-3, 10e-3}


@pytest.mark.long
@pytest.mark.parametrize("name", ["vllm-0.14", "vidur-2024"])
def test_refitting_gives_the_committed_coefficients(name, real_profiles):
    fresh, committed = fit(real_profiles, name), load_costs(name)
    for table in ("gemm", "attention", "allreduce", "elementwise"):
        ours, theirs = getattr(fresh, table), getattr(committed, table)
        assert ours.keys() == theirs.keys()
        for key in ours:
            # Coefficients trade off against each other; what must agree is the error, and so the times.
            assert ours[key].origin.samples == theirs[key].origin.samples
            assert ours[key].origin.errors == pytest.approx(dict(theirs[key].origin.errors), rel=0.05)
    # And so do the times of a step, to a fraction of the fit error.
    batch = np.array([1, 32, 256, 1024])
    for on in ("h100", "a100-80g-sxm"):
        ours, theirs = (
            model_step_seconds(costs, model("llama3-70b"), device(on), 4, batch)
            for costs in (fresh, committed)
        )
        assert ours == pytest.approx(theirs, rel=0.01)


@pytest.mark.long
@pytest.mark.parametrize("name", ["vllm-0.19", "vllm-0.24"])
def test_refitting_gives_the_committed_tables(name, real_profiles):
    """To the last digit but a few, which differ between machines."""
    fresh, committed = fit(real_profiles, name), load_costs(name)
    made, saved = (to_toml(costs).splitlines() for costs in (fresh, committed))
    assert len(made) == len(saved)
    assert sum(one != other for one, other in zip(made, saved, strict=True)) < 0.02 * len(saved)
