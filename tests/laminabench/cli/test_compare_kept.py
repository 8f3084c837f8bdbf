"""`laminabench compare --out` and `--report`: its replays as Runs, and a page that begins with the answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.usefixtures("few")
ONE = ("compare", "--trace", "few.csv", "--jobs", "1", "--model")
OPTIONS = {
    "eras": ("llama3-70b", "--equal-cost"),
    "hosts": ("llama3-70b", "--costs", "roofline", "--host", "vllm=5ms,20us", "--max-num-seqs", "vllm=3"),
    "behind": ("llama3-70b", "--costs", "vllm-0.14", "--host-async", "both", "--network", "nccl"),
    "several": ("llama3-70b", "--costs", "roofline", "--instances", "2", "--router", "least-kv"),
    "unlike": (
        *("llama3-70b", "--costs", "roofline", "--deployment", "lamina=2xh100+4xh20,4xh100+4xh20"),
        *("--queue", "global"),
    ),
    "prompts": (
        *("llama3-70b", "--costs", "vllm-0.14", "--systems", "lamina,vllm"),
        *("--prefill", "colocated", "--slo-ttft-ms", "500"),
    ),
    "chosen": ("llama3-70b", "--systems", "vllm,lamina", "--devices", "h100,h20", "--most-devices", "4"),
    "pool": ("llama3-70b", "--costs", "vllm-0.14", "--prefill", "pool:4xh100", "--mode", "open"),
    "boards": ("llama3-70b@fp8", "--equal-power", "--systems", "vllm,h2m2"),
    "experts": ("gpt-oss-120b", "--equal-cost", "--systems", "vllm,lamina,afd"),
}


@pytest.mark.parametrize("options", OPTIONS)
def test_runs_are_what_was_compared(shell: Any, as_json: Any, options: str) -> None:
    code, out, err = shell(*ONE, *OPTIONS[options], "--out", "kept", "--json", "-q")
    assert code == 0, err
    cells = [cell for cell in json.loads(out)["cells"] if not cell["hosts_alike"]]
    compared = {
        (name, cell["deployment"][name], rate, cell["tbt_ms"][name])
        for cell in cells
        for name, rate in cell["throughput_tokens_per_s"].items()
    }
    manifests = [json.loads(path.read_text()) for path in Path("kept").glob("*/run.json")]
    saved = {
        (
            each["system"],
            each["deployment"]["name"],
            each["summary"]["throughput_tokens_per_s"],
            each["summary"]["tbt_ms"]["p50"],
        )
        for each in manifests
    }
    assert saved == compared
    assert len(manifests) == len(saved)
    # A Run's own request repeats it.
    for directory in Path("kept").iterdir():
        rate = json.loads((directory / "run.json").read_text())["summary"]["throughput_tokens_per_s"]
        again = as_json("replay", "--again", str(directory), "--no-out", "-q")
        assert again["throughput_tokens_per_s"] == rate, directory


def test_a_page_begins_with_the_answer(shell: Any) -> None:
    pytest.importorskip("plotly", reason="plotly, of the report extra, is not installed")
    code, out, err = shell(*ONE, *OPTIONS["eras"], "--report", "answer.html", "--json")
    assert code == 0, err
    facts = json.loads(out)
    page = Path("answer.html").read_text(encoding="utf-8")
    first, *_ = facts["sentences"]
    assert page.index(">Answer<") < page.index(first.replace("'", "&#x27;")) < page.index(">Headline<")
    assert facts["report"] == "answer.html"
    # Nothing else is left behind.
    assert {each.name for each in Path().iterdir()} == {"few.csv", "answer.html"}


def test_a_page_of_runs_that_are_there(shell: Any) -> None:
    pytest.importorskip("plotly", reason="plotly, of the report extra, is not installed")
    assert shell(*ONE, *OPTIONS["eras"], "--out", "kept", "-q")[0] == 0
    runs = sorted(map(str, Path("kept").iterdir()))
    assert shell("compare", *runs, "--report", "runs.html", "-q")[0] == 0
    assert ">Runs side by side<" in Path("runs.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("more", "code"),
    [
        (("--out", "."), "output-exists"),
        (("--report", "few.csv/page.html"), "file-not-writable"),
        (("--model", "llama-65b", "--out", "kept"), "compare-keep-one"),
    ],
)
def test_what_cannot_be_saved_is_refused(shell: Any, more: tuple[str, ...], code: str) -> None:
    before = set(Path().iterdir())
    exit_code, out, _ = shell(*ONE, *OPTIONS["eras"], *more, "--json")
    assert (exit_code, json.loads(out)["error"]["code"]) == (2, code)
    assert set(Path().iterdir()) == before
