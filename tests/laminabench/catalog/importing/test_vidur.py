"""Sets from Vidur's profiles: a made-up folder, and the real file where it is."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from laminabench.catalog.cost_file import load_costs
from laminabench.catalog.cost_terms import AllReduceCost, GemmCost, Origin
from laminabench.catalog.find_model import model
from laminabench.catalog.hardware import device
from laminabench.catalog.importing import imported
from laminabench.catalog.importing.vidur import VIDUR_OPS, VIDUR_SMALL_OPS
from laminabench.catalog.models import ModelShape
from laminabench.catalog.step import model_step_seconds
from laminabench.util.errors import UserError

TRUTH = Origin("assumed", "made up")
GEMM = GemmCost(4e-6, 0.3e-9, 0.7, 0.85, 2.5, TRUTH)
REDUCE = AllReduceCost(15e-6, 0.5, TRUTH)
SIZES = ("heads", "kv_heads", "hidden", "intermediate", "vocab")
COLUMNS = ("n_head", "n_kv_head", "n_embd", "n_expanded_embd", "vocab_size")


def _layer(shape: ModelShape, degrees: tuple[int, ...], small: tuple[str, ...]) -> pd.DataFrame:
    on, rows = device("a100-80g-sxm"), (1, 8, 64, 512)
    return pd.DataFrame(
        {
            "num_tokens": m,
            "num_tensor_parallel_workers": tp,
            **dict(zip(COLUMNS, (getattr(shape, name) for name in SIZES), strict=True)),
            "use_gated_mlp": shape.gated_mlp,
            **{
                f"time_stats.{name}.median": 1e3 * float(GEMM.seconds(on, m, gemm.n, gemm.k))
                for name, gemm in zip(VIDUR_OPS, shape.layer_gemms(tp), strict=True)
            },
            **{f"time_stats.{name}.median": 0.004 + m / 1e4 for name in small},
        }
        for tp in degrees
        for m in rows
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Llama-3-8B, and OPT-13B without all its small operators, on an A100."""
    result = tmp_path / "profiling"
    gpu, node = result / "compute" / "a100", result / "network" / "a100_dgx"
    whole = (*VIDUR_SMALL_OPS, "emb")
    for name, degrees, small in (("llama3-8b", (1, 2), whole), ("opt-13b", (1,), whole[1:])):
        path = gpu / "some" / name / "mlp.csv"
        path.parent.mkdir(parents=True)
        _layer(model(name), degrees, small).to_csv(path)
    node.mkdir(parents=True)
    sizes = 2.0 ** np.arange(10, 25, 2)
    seconds = REDUCE.seconds(device("a100-80g-sxm"), 2, sizes)
    table = {"num_workers": 2, "devices_per_node": 2, "size": sizes}
    fastest = "time_stats.all_reduce.min"
    one_node = pd.DataFrame({**table, fastest: 1e3 * seconds})
    two_nodes = one_node.assign(devices_per_node=1, **{fastest: 1e4 * seconds})
    pd.concat([one_node, two_nodes]).to_csv(node / "all_reduce.csv")
    return result


def test_a_folder_becomes_curves_and_formulas(folder: Path) -> None:
    costs = imported("vidur", [folder], "mine")
    on = device("a100-80g-sxm")
    curve = costs.measured.gemm[on.name, "bf16", 6144, 4096]
    assert curve.at([1, 64]) == pytest.approx(GEMM.seconds(on, [1, 64], 6144, 4096))
    assert (on.name, "bf16", 20480, 5120) in costs.measured.gemm  # OPT's first matrix, which is not gated
    assert costs.gemm[on.name, "bf16"].bandwidth_efficiency == pytest.approx(0.85, rel=0.05)
    assert set(costs.gemm[on.name, "bf16"].origin.errors) == {
        "op",
        "held_out_layer",
        "held_out_layer_nearest",
    }
    assert costs.measured.nearest == 4
    # Two norms and an addition of 5 us each are two norms that add.
    assert costs.measured.operators[on.name, "norm", 4096].at(10) == pytest.approx(7.5e-6)
    assert (on.name, "embedding", 4096) in costs.measured.operators
    assert (on.name, "norm", 5120) not in costs.measured.operators
    assert costs.allreduce[on.name, 2].latency_s == pytest.approx(15e-6, rel=0.02)
    attention = costs.attention[on.name]
    assert attention.bandwidth_efficiency == load_costs("vllm-0.14").attention[on.name].bandwidth_efficiency
    assert attention.origin.kind == "assumed"
    assert costs.measured.graph_rows == 0


def test_what_two_profiles_have_is_the_first_one_s(folder: Path) -> None:
    first = folder / "compute" / "a100" / "some" / "llama3-8b"
    second = shutil.copytree(first, first.parents[1] / "tuned" / "llama3-8b") / "mlp.csv"
    table = pd.read_csv(second, index_col=0)
    table.assign(**2 * table.filter(like="time_stats")).to_csv(second)
    curve = imported("vidur", [folder], "mine").measured.gemm["a100-80g-sxm", "bf16", 6144, 4096]
    assert curve.at(64) == pytest.approx(GEMM.seconds(device("a100-80g-sxm"), 64, 6144, 4096))


def test_a_device_s_own_folder_will_do(folder: Path) -> None:
    costs = imported("vidur", [folder / "compute" / "a100"], "mine")
    assert set(costs.allreduce) == {("a100-80g-sxm", 2)}


def test_what_no_profile_has_whole_is_the_default_set_s(folder: Path) -> None:
    shutil.rmtree(folder / "compute" / "a100" / "some" / "llama3-8b")
    shutil.rmtree(folder / "network")
    costs = imported("vidur", [folder], "mine")
    assert costs.elementwise["a100-80g-sxm"].origin.kind == "assumed"
    assert not costs.allreduce
    assert not costs.measured.operators


def test_a_folder_that_is_none_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="costs-no-measurements"):
        imported("vidur", [tmp_path / "absent"], "mine")
    with pytest.raises(UserError, match="costs-bad-flag"):
        imported("vidur", [folder], "mine", models=["llama3-8b"])
    (folder / "compute" / "a100").rename(folder / "compute" / "a40")
    with pytest.raises(UserError, match="costs-unknown-device"):
        imported("vidur", [folder], "mine")
    assert imported("vidur", [folder], "mine", devices=["a40=l40s"]).measured.gemm
    path = folder / "compute" / "a40" / "some" / "opt-13b" / "mlp.csv"
    pd.read_csv(path).drop(columns="n_embd").to_csv(path)
    with pytest.raises(UserError, match="costs-no-measurements"):
        imported("vidur", [folder], "mine", devices=["a40=l40s"])


def test_a_model_without_heads_is_refused(folder: Path) -> None:
    for path in folder.rglob("mlp.csv"):
        pd.read_csv(path).assign(n_head=0).to_csv(path)
    with pytest.raises(UserError, match="costs-no-measurements"):
        imported("vidur", [folder], "mine")


def test_the_real_file_of_h100(real_profiles: Path, tmp_path: Path) -> None:
    path = tmp_path / "compute" / "h100" / "meta-llama" / "Llama-2-70b-hf" / "mlp.csv"
    path.parent.mkdir(parents=True)
    shutil.copy(real_profiles / "h100-llama-2-70b-mlp.csv", path)
    node = tmp_path / "network" / "h100_dgx"
    node.mkdir(parents=True)
    shutil.copy(real_profiles / "h100-dgx-all_reduce.csv", node / "all_reduce.csv")
    costs, packaged = imported("vidur", [tmp_path], "h100"), load_costs("vidur-2024")
    assert costs.gemm["h100", "bf16"].origin.errors["op"] == pytest.approx(
        packaged.gemm["h100", "bf16"].origin.errors["op"], abs=0.1
    )
    for degree in (2, 4, 8):
        ours, theirs = costs.allreduce["h100", degree], packaged.allreduce["h100", degree]
        assert ours.latency_s == pytest.approx(theirs.latency_s, rel=0.01)
    ours, theirs = (
        model_step_seconds(each, model("llama2-70b"), device("h100"), 4, [32, 256])
        for each in (costs, packaged)
    )
    assert ours == pytest.approx(theirs, rel=0.15)
