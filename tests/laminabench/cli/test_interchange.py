"""`laminabench import` and `export`: what they print, write and refuse, and what reads their files."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

DATA = Path(__file__).parents[1] / "interchange" / "data"

pytestmark = pytest.mark.usefixtures("shell")


def test_a_result_becomes_a_run_that_others_read(as_json: Any, printed: Any) -> None:
    flags = ("--deployment", "4xh100", "--price", "h100=2.5", "--slo-tbt-ms", "20", "-q")
    message = as_json("import", str(DATA / "vllm.json"), "--out", "run", *flags)["runs"]
    assert [each["run_dir"] for each in message] == ["run"]
    assert message[0]["requests"]["completed"] == 12
    assert message[0]["differences"] == []
    assert message[0]["stated"]["mean_ttft_ms"] == pytest.approx(33.820466)
    assert message[0]["summary"]["cost"]["usd_per_hour"] == 10.0
    assert message[0]["summary"]["slo"]["tbt_ms"] == 20.0
    as_json("import", str(DATA / "aiperf"), "--out", "other", "-q")
    compared = as_json("compare", "run", "other", "-q")
    assert [side["label"] for side in compared["sides"]] == ["openai 4xh100", "openai http://127.0.0.1:41007"]
    assert any("split evenly" in note for note in compared["notes"])
    page = as_json("report", "run", "other", "-o", "page.html", "-q")
    assert {each["backend"] for each in page["runs"]} == {"live"}
    out = printed("import", str(DATA / "vllm-failed.json"), "--out", "failed")
    assert "failed: model, vllm bench serve, live, closed, 11 completed, 1 failed" in out


def test_several_files_are_several_runs(as_json: Any) -> None:
    files = [str(DATA / name) for name in ("vllm.json", "vllm-rate.json", "aiperf")]
    message = as_json("import", *files, str(DATA / "vllm.json"), "--out", "theirs", "-q")["runs"]
    assert [each["run_dir"] for each in message] == [
        "theirs/vllm", "theirs/vllm-rate", "theirs/aiperf", "theirs/vllm-2",
    ]  # fmt: skip
    assert [each["mode"] for each in message] == ["closed", "open", "closed", "closed"]


def test_by_default_it_goes_where_runs_go(as_json: Any) -> None:
    (message,) = as_json("import", str(DATA / "aiperf"), "--from", "aiperf", "-q")["runs"]
    assert message["run_dir"].startswith("runs/aiperf-imported-")
    assert (Path(message["run_dir"]) / "run.json").is_file()


def test_what_is_refused_leaves_nothing_behind(refused: Any) -> None:
    refused("--save-detailed", "import", str(DATA / "vllm-plain.json"), "--out", "run")
    refused("give that too", "import", str(DATA / "vllm.json"), "--price", "h100=2", "--out", "run")
    refused("is not as guidellm writes it", "import", str(DATA / "vllm.json"), "--from", "guidellm")
    # One that is wrong among several: none is kept.
    both = [str(DATA / "vllm.json"), str(DATA / "vllm-plain.json")]
    refused("--save-detailed", "import", *both, "--out", "runs")
    Path("mine").mkdir()
    Path("mine/notes.txt").write_text("kept")
    refused("is not a Run", "import", str(DATA / "vllm.json"), "--out", "mine")
    assert [path.name for path in Path().iterdir()] == ["mine"]


def test_a_model_that_is_no_text_leaves_nothing_behind(refused: Any) -> None:
    refused("odd\\xff is not UTF-8", "import", str(DATA / "vllm.json"), "--model", os.fsdecode(b"odd\xff"))
    assert not Path("runs").exists()


def test_notes_say_what_the_file_does_not(shell: Any) -> None:
    Path("changed.json").write_text(
        (DATA / "vllm.json").read_text().replace('"mean_itl_ms":', '"mean_itl_ms":1,"was":')
    )
    code, _, err = shell("import", "changed.json", "--out", "run")
    assert code == 0
    assert "states mean_itl_ms 1," in err


@pytest.mark.parametrize("tool", ["aiperf", "vllm-bench", "guidellm"])
def test_a_modelled_run_as_a_result(as_json: Any, shell: Any, tool: str) -> None:
    Path("few.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,50,40\n1,90,30\n")
    flags = ("--trace", "few.csv", "--system", "vllm", "--prefill", "colocated", "--mode", "open")
    as_json("replay", *flags, "--out", "runs/mine", "-q")
    message = as_json("export", "runs/mine", "--to", tool, "-q")
    assert message["output"] == f"mine-MODELLED.{tool}{'' if tool == 'aiperf' else '.json'}"
    assert (message["backend"], message["requests"], message["tokens"]) == ("modelled", 2, 70)
    assert message["bytes"] == sum(path.stat().st_size for path in _files(Path(message["output"])))
    code, _, err = shell("export", "runs/mine", "--to", tool, "-o", "out.x")
    assert code == 0
    assert "out-MODELLED.x" in err
    assert not Path("out.x").exists()
    (back,) = as_json("import", message["output"], "--out", "back", "-q")["runs"]
    assert back["tokens_generated"] == 70
    assert (back["backend"], back["notes"][0].split(":")[0]) == (
        "modelled",
        "this is an export of a modelled Run",
    )
    again = as_json("export", "back", "--to", tool, "-o", "again", "-q")
    assert again["tokens"] == 70


def _files(path: Path) -> list[Path]:
    return list(path.iterdir()) if path.is_dir() else [path]


def test_what_cannot_be_exported(as_json: Any, refused: Any) -> None:
    Path("few.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,50,40\n1,90,30\n")
    as_json("replay", "--trace", "few.csv", "--system", "vllm", "--no-iterations", "--out", "run", "-q")
    refused("without that flag", "export", "run", "--to", "aiperf")
    refused("is not a Run", "export", "few.csv", "--to", "aiperf")
    assert sorted(path.name for path in Path().iterdir()) == ["few.csv", "run"]


def test_an_imported_run_cannot_be_repeated(as_json: Any, refused: Any) -> None:
    as_json("import", str(DATA / "vllm.json"), "--out", "run", "-q")
    refused("it was imported", "replay", "--again", "run")


def test_either_file_of_artifacts_may_be_named(as_json: Any) -> None:
    shutil.copytree(DATA / "aiperf", "artifacts")
    digests = set()
    for place, name in enumerate(("profile_export.jsonl", "profile_export_aiperf.json")):
        (message,) = as_json("import", f"artifacts/{name}", "--out", f"run{place}", "-q")["runs"]
        assert message["version"] == "0.13.0"
        digests.add(json.loads(Path(f"run{place}/run.json").read_text())["trace"]["sha256"])
    assert len(digests) == 1
