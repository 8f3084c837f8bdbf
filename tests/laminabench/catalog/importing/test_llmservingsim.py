"""Sets from folders of LLMServingSim's profiler: a made-up one, and the real ones where they are."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import numpy as np
import pytest

from laminabench.catalog.cost_file import to_toml, write_costs
from laminabench.catalog.importing import imported
from laminabench.catalog.importing.columns import read_columns
from laminabench.catalog.importing.llmservingsim import complete_grid
from laminabench.catalog.routing import skewed
from laminabench.util.errors import UserError

META = """vllm_version: 0.19.0
gpu: NVIDIA GeForce RTX 4090
hardware: RTX4090
model: meta-llama/Llama-3.1-8B
skew_profile:
  enabled: true
skew_fit:
  enabled: true
"""
DENSE = {
    "qkv_proj": 50.0,
    "o_proj": 40.0,
    "gate_up_proj": 250.0,
    "down_proj": 130.0,
    "layernorm": 2.0,
    "rotary_emb": 3.0,
    "act_fn": 4.0,
    "embedding": 5.0,
    "final_layernorm": 2.0,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A layer of Llama-3.1-8B, whose uneven batches take a quarter of the way to the longest."""
    result = tmp_path / "made-up"
    (result / "tp1").mkdir(parents=True)
    (result / "meta.yaml").write_text(META)

    def write(name: str, columns: str, rows: list[tuple[object, ...]]) -> None:
        lines = [columns, *(",".join(map(str, row)) for row in rows)]
        (result / "tp1" / name).write_text("\n".join(lines) + "\n")

    sizes = (1, 2, 4, 8, 16)
    write(
        "dense.csv",
        "layer,tokens,time_us",
        [(name, m, us + m / 2) for name, us in DENSE.items() for m in sizes],
    )
    heads = [("lm_head", n, 1000.0 + n) for n in sizes] + [("sampler", n, 20.0 + n) for n in sizes]
    write("per_sequence.csv", "layer,sequences,time_us", heads)
    axes = ((0, 16, 32), (0, 512), (0, 1, 2, 4), (0, 16, 512, 1024))
    attention = []
    for c, p, n, kv in itertools.product(*axes):
        if (c == 0 and p) or (n == 0) != (kv == 0) or not (c or n):
            continue
        attention.append((c, p, n, kv, 5 + c * (p + c / 2) / 100 + n * kv / 100))
    write("attention.csv", "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us", attention)
    skew = [
        ("pure", n, n // 2, 0.5, 4.0, pc, 0, 128, 512, 320, 300.0, 700.0, 400.0, 0.25)
        for n in (2, 4)
        for pc in (0, 16)
    ]
    write(
        "skew.csv", "regime,n,nb,ratio,skew,pc,kp,kvs,kv_big,kv_mean,t_mean_us,t_max_us,t_skew_us,alpha", skew
    )
    return result


def test_a_folder_becomes_curves_and_grids(folder: Path) -> None:
    costs = imported("llmservingsim", [folder], "mine", links=["rtx-4090=20us,16GB/s"])
    assert to_toml(costs).startswith('name = "mine"')
    curve = costs.measured.gemm["rtx-4090", "bf16", 6144, 4096]
    assert curve.at([1, 3, 16]) == pytest.approx([50.5e-6, 51.5e-6, 58e-6])
    assert costs.measured.gemm["rtx-4090", "bf16", 128256, 4096].at(8) == pytest.approx(1008e-6)
    assert costs.measured.operators["rtx-4090", "sampler", 128256].at(4) == pytest.approx(24e-6)
    grids = costs.measured.attention["rtx-4090", 32, 8, 128]
    assert [axis.tolist() for axis in grids.decode.axes] == [[1, 2, 4], [16, 512, 1024]]
    assert [axis.tolist() for axis in grids.prompt.axes] == [[16, 32], [0, 512]]
    assert grids.mixed.values.shape == (2, 2, 3, 3)
    assert grids.mixed.values[1, 1, 2, 0] == pytest.approx((5 + 32 * 528 / 100 + 0.64) * 1e-6)
    assert np.unique(grids.skew.values) == pytest.approx([0.25])
    assert np.unique(grids.mixed_skew.values) == pytest.approx([0.25])
    both = costs.allreduce["rtx-4090", 2]
    assert (both.origin.kind, both.latency_s) == ("assumed", pytest.approx(20e-6))
    assert costs.measured.graph_rows == 512


def test_the_profile_says_whether_uneven_batches_count(folder: Path) -> None:
    (folder / "meta.yaml").write_text(
        META.replace("skew_fit:\n  enabled: true", "skew_fit:\n  enabled: false")
    )
    costs = imported("llmservingsim", [folder], "mine")
    assert not costs.measured.attention["rtx-4090", 32, 8, 128].skew.values.any()


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("Llama-3.1-8B", "Nobodys-8B", "costs-unknown-model"),
        ("hardware: RTX4090", "hardware: RTX9999", "costs-unknown-device"),
    ],
)
def test_missing_catalogue_entries_are_requested(folder: Path, old: str, new: str, code: str) -> None:
    (folder / "meta.yaml").write_text(META.replace(old, new))
    with pytest.raises(UserError, match=code):
        imported("llmservingsim", [folder], "mine")
    result = imported("llmservingsim", [folder], "mine", models=["llama3-8b"], devices=["RTX9999=rtx-4090"])
    assert result.measured.gemm


def test_a_folder_that_is_none_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="costs-no-measurements"):
        imported("llmservingsim", [tmp_path / "absent"], "mine")
    (folder / "tp1" / "dense.csv").unlink()
    with pytest.raises(UserError, match="costs-no-measurements"):
        imported("llmservingsim", [folder], "mine")


@pytest.mark.parametrize(
    "link",
    [
        "rtx-4090",
        "rtx-4090=20us",
        "rtx-4090=0us,16GB/s",
        "=20us,16GB/s",
        "rtx-4090=1.2.3us,16GB/s",
        "rtx-4090=20us,.GB/s",
        f"rtx-4090={'9' * 400}us,1GB/s",
    ],
)
def test_a_link_that_says_nothing_is_refused(folder: Path, link: str) -> None:
    with pytest.raises(UserError, match="costs-bad-flag"):
        imported("llmservingsim", [folder], "mine", links=[link])


def test_a_grid_leaves_out_the_point_with_the_holes_and_what_is_no_power_of_two() -> None:
    rows = [(1, 16), (1, 24), (1, 32), (2, 16), (2, 32), (4, 16)]
    columns = [np.array(column, np.float64) for column in zip(*rows, strict=True)]
    grid = complete_grid(columns, np.arange(6.0))
    assert [axis.tolist() for axis in grid.axes] == [[1, 2], [16, 32]]
    assert grid.values.tolist() == [[0, 2], [3, 4]]


def test_a_grid_has_no_points_below_one_token() -> None:
    """Each would be an axis's point: a table of thousands would fill the memory."""
    lengths = np.array([0, 2.0**-5, 0.5, 0.7, 0.75, 0.8, 1, 4])
    grid = complete_grid([lengths, np.ones(8)], np.arange(8.0))
    assert grid.axes[0].tolist() == [0, 1, 4]


def test_measurements_that_no_formula_is_fitted_to_are_refused(folder: Path) -> None:
    """The formula is of contexts from 256 tokens on, and its first guess is no measurement."""
    path = folder / "tp1" / "attention.csv"
    text = re.sub(r"(?<=\n)(\d+,\d+,\d+),512,", r"\1,64,", path.read_text())
    path.write_text(re.sub(r"(?<=\n)(\d+,\d+,\d+),1024,", r"\1,128,", text))
    with pytest.raises(UserError, match="no measurement for AttentionCost") as refused:
        imported("llmservingsim", [folder], "mine")
    assert refused.value.code == "costs-no-measurements"


def test_layers_that_no_model_has_are_not_read(folder: Path) -> None:
    """Each would be looked for in all rows: a file with a layer a row would take hours."""
    path = folder / "tp1" / "dense.csv"
    path.write_text(path.read_text() + "other,1,5.0\n")
    assert "other" not in to_toml(imported("llmservingsim", [folder], "mine"))


def test_a_set_that_could_not_be_read_is_not_written(folder: Path, tmp_path: Path) -> None:
    path = folder / "tp1" / "dense.csv"
    path.write_text(path.read_text() + "qkv_proj,16,59.0\n")  # twice, and a curve rises
    costs = imported("llmservingsim", [folder], "mine")
    with pytest.raises(UserError, match="costs-file-incomplete"):
        write_costs(costs, tmp_path / "mine.toml")
    assert not (tmp_path / "mine.toml").exists()


@pytest.mark.parametrize(
    ("name", "pattern", "damaged"),
    [
        ("attention.csv", r"\n[^$]*", "\n"),  # a header alone
        ("attention.csv", r"\n0,.*(?=\n)", ""),  # nothing decodes alone
        ("per_sequence.csv", "sequences", "lines"),
        ("dense.csv", "time_us", "tokens"),
        ("dense.csv", "\nlayernorm", "\nnorm"),
        ("dense.csv", r"(?<=\d),[\d.]+\n", ",true\n"),
        ("dense.csv", r"(?<=\d),[\d.]+\n", ",2024-01-01\n"),
        ("dense.csv", ",50.5", ",-50.5"),
        ("dense.csv", ",50.5", ",0"),
        ("dense.csv", ",50.5", ",nan"),
        ("dense.csv", ",50.5", ","),
        ("skew.csv", ",700.0", ",inf"),
    ],
)
def test_damaged_files_are_refused(folder: Path, name: str, pattern: str, damaged: str) -> None:
    path = folder / "tp1" / name
    text = path.read_text()
    changed = re.sub(pattern, damaged, text)
    assert changed != text
    path.write_text(changed)
    with pytest.raises(UserError, match="costs-no-measurements") as refused:
        imported("llmservingsim", [folder], "mine")
    assert name in str(refused.value)


@pytest.mark.parametrize("degree", ["tp1.5", "tp0", "tp3", "tp99999", "one"])
def test_folders_of_no_degree_are_refused(folder: Path, degree: str) -> None:
    (folder / "tp1").rename(folder / degree)
    with pytest.raises(UserError, match="costs-no-measurements"):
        imported("llmservingsim", [folder], "mine")


def test_models_whose_times_the_format_lacks_are_refused(folder: Path) -> None:
    (folder / "meta.yaml").write_text(META.replace("Llama-3.1-8B", "Another"))
    with pytest.raises(UserError, match="costs-mixture-not-imported"):
        imported("llmservingsim", [folder], "mine", models=["deepseek-v3"])


def test_experts_are_a_curve_between_those_that_skewed_loads_activate(folder: Path) -> None:
    # A model trained on from the catalogue's; a layer takes 5 us for each expert, and 1 for each token.
    (folder / "meta.yaml").write_text(
        META.replace("meta-llama/Llama-3.1-8B", "Qwen/Qwen3-30B-A3B-Instruct-2507")
    )
    dense = folder / "tp1" / "dense.csv"
    text = re.sub(r"(gate_up_proj|down_proj|act_fn),.*\n", "", dense.read_text())
    norms = [f"qk_norm,{rows},3.5" for rows in (1, 2, 4, 8, 16)]
    dense.write_text(text + "\n".join(norms) + "\n")
    with pytest.raises(UserError, match=r"moe\.csv"):
        imported("llmservingsim", [folder], "mine")
    pairs = [(m, a) for m in (1, 8, 64, 512) for a in (8, 16, 32, 64, 128) if a <= 8 * m]
    rows = ["tokens,activated_experts,time_us", *(f"{m},{a},{5 * a + m}" for m, a in pairs)]
    (folder / "tp1" / "moe.csv").write_text("\n".join(rows[:2]) + "\n")
    with pytest.raises(UserError, match="costs-no-measurements"):
        imported("llmservingsim", [folder], "mine")
    (folder / "tp1" / "moe.csv").write_text("\n".join(rows) + "\n")
    costs = imported("llmservingsim", [folder], "mine")
    curve = costs.measured.experts["rtx-4090", "bf16", 2048, 768, 8, 128, 1, 1]
    active = skewed(128, 8, 1, [1, 8, 64, 512], 1.2).active
    assert curve.at([1, 8, 64, 512]) == pytest.approx(1e-6 * (5 * active + np.array([1, 8, 64, 512])))
    assert costs.experts["rtx-4090", "bf16"].origin.kind == "fitted"


@pytest.mark.parametrize("time", ["1e-300", "1e300", "0"])
def test_times_that_were_not_measured_are_refused(tmp_path: Path, time: str) -> None:
    path = tmp_path / "dense.csv"
    path.write_text(f"time_us\n{time}\n")
    with pytest.raises(UserError, match="it needs a number above 0 to 1e\\+15"):
        read_columns(path, times=["time_us"])
