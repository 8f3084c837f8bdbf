"""`traces fetch` and `traces fit` as a person uses them, in this process."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:15:{second:02}.0000000,{100 + second},{1 + second}\n" for second in range(40)
)

Shell = Callable[..., tuple[int, str, str]]
AsJson = Callable[..., dict[str, Any]]


def test_fit_and_synthesise_from_the_fit(shell: Shell, as_json: AsJson) -> None:
    shell("traces", "synth", "azure-code", "--requests", "2000", "-o", "code.csv")
    facts = as_json("traces", "fit", "code.csv", "-o", "mine.toml")
    assert facts["method"] == "fitted"
    assert facts["bytes"] < 20_000
    assert facts["errors"]["ks_prompt"] < 0.02
    again = as_json("traces", "synth", "mine.toml", "--requests", "2000", "-o", "again.csv")
    assert again["prompt"]["mean"] == pytest.approx(
        as_json("traces", "info", "code.csv")["prompt"]["mean"], rel=0.01
    )


def test_fit_by_moments_says_so(shell: Shell, as_json: AsJson) -> None:
    shell("traces", "synth", "azure-code", "--requests", "2000", "-o", "code.csv")
    matched = ("--mean-prompt", "500", "--mean-output", "50", "--requests", "300")
    assert as_json("traces", "fit", "code.csv", "-o", "other.toml", *matched)["method"] == "moment-matched"
    made = as_json("traces", "synth", "other.toml", "-o", "other.csv")
    assert made["requests"] == 300
    assert made["prompt"]["mean"] == pytest.approx(500, rel=0.02)


def test_fit_wants_the_real_trace(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("laminabench.traces.synth.synthesise", lambda *_: pytest.fail("made requests"))
        code, _, err = shell("traces", "fit", "azure-conv", "-o", "x.toml", "--offline")
    assert code == 2
    assert "azure-conv is not here (--offline), and a profile is fitted to the real trace only" in err
    shell("traces", "synth", "azure-code", "--requests", "50", "-o", "made.parquet")
    code, _, err = shell("traces", "fit", "made.parquet", "-o", "x.toml")
    assert code == 2
    assert "made.parquet was itself generated from a profile" in err
    assert not Path("x.toml").exists()


def test_fit_keeps_any_note_and_stays_small(shell: Shell, as_json: AsJson) -> None:
    Path("mine.csv").write_text(AZURE)
    assert as_json("traces", "fit", "mine.csv", "-o", "a.toml", "--note", "a\tb\x1b[c]")["bytes"] < 20_000
    assert as_json("traces", "synth", "a.toml", "-o", "a.csv")["notes"][1] == "a\tb\x1b[c]"
    code, _, err = shell("traces", "fit", "mine.csv", "-o", "b.toml", "--note", "x" * 20_000)
    assert code == 2
    assert "must stay under 20,000; shorten its note" in err
    assert not Path("b.toml").exists()


def test_fetch_from_a_folder(shell: Shell, as_json: AsJson, tmp_path: Path) -> None:
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


def test_a_failed_fetch_does_not_stop_the_others(shell: Shell, tmp_path: Path) -> None:
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
