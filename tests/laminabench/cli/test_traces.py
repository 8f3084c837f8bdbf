"""The traces commands as a person uses them, in this process; test_main has the shell's view."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:15:{second:02}.0000000,{100 + second},{1 + second}\n" for second in range(40)
)


def test_list_knows_what_is_here(as_json: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {row["name"]: row for row in as_json("traces", "list")["traces"]}
    assert len(rows) == 8
    assert rows["azure-conv"]["file"] is None
    assert rows["kimi-ta"]["profile"] == "moment-matched"
    (tmp_path / "AzureLLMInferenceTrace_conv.csv").write_text(AZURE)
    monkeypatch.setenv("LAMINABENCH_TRACES", str(tmp_path))
    rows = {row["name"]: row for row in as_json("traces", "list")["traces"]}
    assert rows["azure-conv"]["file"] == str(tmp_path / "AzureLLMInferenceTrace_conv.csv")


def test_info_transforms_and_reports(shell: Any) -> None:
    Path("mine.csv").write_text(AZURE)
    code, out, err = shell("traces info mine.csv --window 10: --max-prompt 120 --rate-scale 4")
    assert code == 0
    assert "requests      30" in out
    assert "19 of 30 requests were too long and were truncated" in err
    assert "offered at 4 requests/s" in err


def test_import_keeps_a_file_under_a_name(as_json: Any) -> None:
    Path("mine.csv").write_text("t,in,out\n0,10,5\n1.5,20,6\n")
    facts = as_json("traces", "import", "mine.csv", "--columns", "arrival=t,prompt=in,output=out")
    assert (facts["name"], facts["requests"]) == ("mine", 2)
    Path("mine.csv").unlink()
    assert as_json("traces", "info", "mine")["prompt"]["mean"] == 15
    assert [row["name"] for row in as_json("traces", "list")["imported"]] == ["mine"]
    Path("v1.2.csv").write_text(AZURE)
    assert as_json("traces", "import", "v1.2.csv")["name"] == "v1.2"
    assert as_json("traces", "info", "v1.2")["requests"] == 40


def test_import_of_a_bad_row_names_it_and_keeps_nothing(shell: Any, refused: Any, tmp_path: Path) -> None:
    Path("mine.csv").write_text(AZURE + "2023-11-16 18:16:00.0000000,many,4\n")
    err = refused("mine.csv:42", "traces", "import", "mine.csv")
    assert "ContextTokens" in err
    assert "--skip-bad" in err
    assert not list(tmp_path.rglob("*.parquet"))
    code, _, err = shell("traces", "import", "mine.csv", "--skip-bad")
    assert code == 0
    assert "1 bad row" in err


def test_synth_then_info_then_export(printed: Any, as_json: Any) -> None:
    made = as_json("traces", "synth", "azure-code", "--requests", "500", "--seed", "3", "-o", "made.parquet")
    assert (made["requests"], made["source"], made["seed"]) == (500, "profile", 3)
    facts = as_json("traces", "info", "made.parquet")
    assert (facts["name"], facts["source"], facts["requests"]) == ("azure-code", "profile", 500)
    for suffix in ("csv", "jsonl", "parquet"):
        printed("traces", "export", "made.parquet", "--num-requests", "9", "-o", f"nine.{suffix}")
        assert (
            as_json("traces", "info", f"nine.{suffix}")["prompt"]
            == as_json("traces", "info", "made.parquet", "--num-requests", "9")["prompt"]
        )


def test_values_that_a_file_cannot_hold_are_reported(shell: Any) -> None:
    kimi = ("traces", "synth", "kimi-conv", "--requests", "50", "-o")
    assert "k.csv has no prefix blocks, which a CSV cannot hold" in shell(*kimi, "k.csv")[2]
    assert "prefix block" not in shell(*kimi, "k.jsonl")[2]
    halved = ("traces", "export", "k.jsonl", "--scale-lengths", "0.5", "-o")
    assert "does not say that a prefix block is 256 tokens" in shell(*halved, "h.jsonl")[2]
    assert "prefix block" not in shell(*halved, "h.parquet")[2]


def test_fit_and_synthesise_from_the_fit(shell: Any, as_json: Any) -> None:
    shell("traces", "synth", "azure-code", "--requests", "2000", "-o", "code.csv")
    facts = as_json("traces", "fit", "code.csv", "-o", "mine.toml")
    assert facts["method"] == "fitted"
    assert facts["bytes"] < 20_000
    assert facts["errors"]["ks_prompt"] < 0.02
    again = as_json("traces", "synth", "mine.toml", "--requests", "2000", "-o", "again.csv")
    assert again["prompt"]["mean"] == pytest.approx(
        as_json("traces", "info", "code.csv")["prompt"]["mean"], rel=0.01
    )


def test_fit_wants_the_real_trace(shell: Any, refused: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("laminabench.traces.synth.synthesise", lambda *_: pytest.fail("made requests"))
        code, _, err = shell("traces", "fit", "azure-conv", "-o", "x.toml", "--offline")
    assert code == 2
    assert "azure-conv is not here (--offline), and a profile is fitted to the real trace only" in err
    shell("traces", "synth", "azure-code", "--requests", "50", "-o", "made.parquet")
    refused("made.parquet was itself generated from a profile", "traces fit made.parquet -o x.toml")
    assert not Path("x.toml").exists()


def test_fetch_from_a_folder(shell: Any, as_json: Any, tmp_path: Path) -> None:
    mirror = tmp_path / "mirror"
    mirror.mkdir()
    (mirror / "AzureLLMInferenceTrace_conv.csv").write_text(AZURE)
    code, _, err = shell("traces", "fetch", "azure-conv", "--from", str(mirror))
    assert code == 1
    assert "was expected" in err
    assert list((tmp_path / "home" / "traces" / "raw").iterdir()) == []
    (mirror / "AzureLLMInferenceTrace_conv_1week.csv").write_text(AZURE)
    code, _, err = shell("traces", "fetch", "azure-2024-conv", "--from", str(mirror))
    assert code == 0
    assert "the publisher gives no checksum" in err
    assert as_json("traces", "info", "azure-2024-conv")["source"] == "file"


def test_a_failed_fetch_does_not_stop_the_others(shell: Any, tmp_path: Path) -> None:
    mirror = tmp_path / "mirror"
    mirror.mkdir()
    (mirror / "AzureLLMInferenceTrace_conv.csv").write_text("altered")
    (mirror / "AzureLLMInferenceTrace_conv_1week.csv").write_text(AZURE)
    names = ("azure-conv", "azure-2024-conv", "azure-code")
    code, out, err = shell("traces", "fetch", *names, "--from", str(mirror), "--json", "-q")
    assert code == 2  # the worst: a missing file, not the failed check
    rows = json.loads(out)["fetched"]
    assert [row["name"] for row in rows] == list(names)
    assert ["error" in row for row in rows] == [True, False, True]
    assert [line.split(":")[1] for line in err.splitlines()] == [" check failed", " error"]
    code, out, _ = shell("traces", "fetch", *names[:2], "--from", str(mirror))
    assert code == 1
    assert out.startswith("azure-2024-conv  ")
