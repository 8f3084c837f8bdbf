"""`laminabench hardware`, `models` and `costs` as a person uses them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Shell = Callable[..., tuple[int, str, str]]
AsJson = Callable[..., dict[str, Any]]
SMALL = ("--trace", "azure-code", "--offline", "--num-requests", "200", "-q")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("flops_efficiency = 0.8744", "flops_efficiency = 0", "gemm.h100.bf16.flops_efficiency is 0"),
        ("flops_efficiency = 0.8744", "flops_efficiency = nan", "gemm.h100.bf16.flops_efficiency is nan"),
        ("flops_efficiency = 0.8744", 'flops_efficiency = "a"', "flops_efficiency is 'a'"),
        ("overhead_us = 2.974", "overhead_us = -3", "gemm.h100.bf16.overhead_us is -3"),
        ("overhead_us = 2.974", "overhead_us = 1e300", "the costs give"),
    ],
)
def test_a_broken_cost_file_is_named(shell: Shell, old: str, new: str, said: str) -> None:
    import laminabench.catalog  # noqa: PLC0415 - for its folder

    packaged = Path(laminabench.catalog.__file__).parent / "data" / "costs" / "vllm-0.14.toml"
    text = packaged.read_text()
    assert old in text
    Path("mine.toml").write_text(text.replace(old, new))
    code, out, err = shell("replay", *SMALL, "--no-out", "--costs", "mine.toml")
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["hardware", "list"],
        ["hardware", "show", "h20"],
        ["models", "list"],
        ["models", "show", "llama3-70b"],
        ["costs", "list"],
        ["costs", "show", "vllm-0.14", "--device", "h20"],
        ["costs", "show", "roofline", "--device", "h100"],
    ],
)
def test_the_catalogue_can_be_read(shell: Shell, as_json: AsJson, arguments: list[str]) -> None:
    code, out, err = shell(*arguments)
    assert (code, err) == (0, "")
    assert len(out.splitlines()) > 3
    assert as_json(*arguments)


def test_fitting_costs_needs_the_measurements(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LAMINABENCH_PROFILES", raising=False)
    code, _, err = shell("costs", "fit", "--set", "vllm-0.14")
    assert code == 2
    assert "--from FOLDER" in err


def test_fitting_costs_prints_each_error_under_its_name(shell: Shell, real_profiles: Path) -> None:
    code, out, _ = shell("costs", "fit", "--set", "vidur-2024", "--from", str(real_profiles))
    assert code == 0
    header = next(line for line in out.splitlines() if line.startswith("term"))
    gemm = next(line for line in out.splitlines() if line.startswith("gemm"))
    assert gemm[header.index("held out layer") :].split()[0].replace(".", "").isdigit()
