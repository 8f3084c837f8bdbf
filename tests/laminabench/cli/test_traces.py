"""The traces commands as a person uses them, in this process; test_main has the shell's view."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from laminabench.cli.main import run

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:15:{second:02}.0000000,{100 + second},{1 + second}\n" for second in range(40)
)
REAL = {
    "azure-conv": (19366, 1154.697, 211.126),
    "azure-code": (8819, 2047.848, 27.883),
    "kimi-conv": (12031, 12035.061, 342.619),
}

Shell = Callable[..., tuple[int, str, str]]


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Shell:
    """Run a command line; gives the exit code, stdout and stderr. Nothing is downloaded or shared."""
    monkeypatch.setenv("LAMINABENCH_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("LAMINABENCH_TRACES", raising=False)
    monkeypatch.delenv("LAMINABENCH_DEBUG", raising=False)
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as exit_:
            run(list(arguments))
        written = capsys.readouterr()
        assert isinstance(exit_.value.code, int)
        return exit_.value.code, written.out, written.err

    return call


def as_json(shell: Shell, *arguments: str) -> dict[str, Any]:
    code, out, err = shell(*arguments, "--json")
    assert code == 0, err
    facts = json.loads(out)
    assert isinstance(facts, dict)
    return facts


def test_list_knows_what_is_here(shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {row["name"]: row for row in as_json(shell, "traces", "list")["traces"]}
    assert len(rows) == 8
    assert rows["azure-conv"]["file"] is None
    assert rows["kimi-ta"]["profile"] == "moment-matched"
    (tmp_path / "AzureLLMInferenceTrace_conv.csv").write_text(AZURE)
    monkeypatch.setenv("LAMINABENCH_TRACES", str(tmp_path))
    rows = {row["name"]: row for row in as_json(shell, "traces", "list")["traces"]}
    assert rows["azure-conv"]["file"] == str(tmp_path / "AzureLLMInferenceTrace_conv.csv")


@pytest.mark.parametrize("name", sorted(REAL))
def test_info_on_the_real_files(
    shell: Shell, name: str, monkeypatch: pytest.MonkeyPatch, real_traces: Path
) -> None:
    monkeypatch.setenv("LAMINABENCH_TRACES", str(real_traces))
    facts = as_json(shell, "traces", "info", name, "--offline")
    requests, prompt, output = REAL[name]
    assert (facts["source"], facts["requests"]) == ("file", requests)
    assert facts["prompt"]["mean"] == pytest.approx(prompt, abs=0.001)
    assert facts["output"]["mean"] == pytest.approx(output, abs=0.001)


def test_info_transforms_and_tells(shell: Shell) -> None:
    Path("mine.csv").write_text(AZURE)
    code, out, err = shell(
        "traces", "info", "mine.csv", "--window", "10:", "--max-prompt", "120", "--rate-scale", "4"
    )
    assert code == 0
    assert "requests      30" in out
    assert "19 of 30 requests were too long and were truncated" in err
    assert "offered at 4 requests/s" in err


def test_info_draws(shell: Shell) -> None:
    Path("mine.csv").write_text(AZURE)
    for suffix in ("png", "svg"):
        code, _, err = shell("traces", "info", "mine.csv", "--plot", f"picture.{suffix}")
        assert code == 0, err
        assert Path(f"picture.{suffix}").stat().st_size > 5000
    code, _, err = shell("traces", "info", "mine.csv", "--plot", "picture.bmp")
    assert (code, err) == (
        2,
        "laminabench: error: cannot draw picture.bmp: give it one of the suffixes .png, .svg, .pdf\n",
    )


def test_info_draws_a_trace_without_arrivals(shell: Shell) -> None:
    code, _, err = shell(
        "traces", "info", "sharegpt", "--offline", "--num-requests", "500", "--plot", "s.png"
    )
    assert code == 0, err


def test_import_keeps_a_file_under_a_name(shell: Shell) -> None:
    Path("mine.csv").write_text("t,in,out\n0,10,5\n1.5,20,6\n")
    facts = as_json(shell, "traces", "import", "mine.csv", "--columns", "arrival=t,prompt=in,output=out")
    assert (facts["name"], facts["requests"]) == ("mine", 2)
    Path("mine.csv").unlink()
    assert as_json(shell, "traces", "info", "mine")["prompt"]["mean"] == 15
    assert [row["name"] for row in as_json(shell, "traces", "list")["imported"]] == ["mine"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--name", "azure-conv"], "'azure-conv' is a trace of the catalogue; choose another --name"),
        (["--name", "../x"], "'../x' cannot be a trace's name"),
        (["--columns", "arrival"], "'arrival' is not of the form arrival=COLUMN"),
    ],
)
def test_import_refuses(shell: Shell, arguments: list[str], said: str) -> None:
    Path("mine.csv").write_text(AZURE)
    code, out, err = shell("traces", "import", "mine.csv", *arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1


def test_import_of_a_bad_row_names_it_and_keeps_nothing(shell: Shell, tmp_path: Path) -> None:
    Path("mine.csv").write_text(AZURE + "2023-11-16 18:16:00.0000000,many,4\n")
    code, _, err = shell("traces", "import", "mine.csv")
    assert code == 2
    assert "mine.csv:42" in err
    assert "ContextTokens" in err
    assert "--skip-bad" in err
    assert not list(tmp_path.rglob("*.parquet"))
    code, _, err = shell("traces", "import", "mine.csv", "--skip-bad")
    assert code == 0
    assert "1 bad row" in err


def test_synth_then_info_then_export(shell: Shell) -> None:
    made = as_json(
        shell, "traces", "synth", "azure-code", "--requests", "500", "--seed", "3", "-o", "made.parquet"
    )
    assert (made["requests"], made["source"], made["seed"]) == (500, "profile", 3)
    facts = as_json(shell, "traces", "info", "made.parquet")
    assert (facts["name"], facts["source"], facts["requests"]) == ("azure-code", "profile", 500)
    for suffix in ("csv", "jsonl", "parquet"):
        code, _, err = shell(
            "traces", "export", "made.parquet", "--num-requests", "9", "-o", f"nine.{suffix}"
        )
        assert code == 0, err
        assert (
            as_json(shell, "traces", "info", f"nine.{suffix}")["prompt"]
            == as_json(shell, "traces", "info", "made.parquet", "--num-requests", "9")["prompt"]
        )


def test_an_unwritable_target_is_one_sentence(shell: Shell) -> None:
    Path("file").write_text("")
    code, _, err = shell("traces", "synth", "azure-code", "--requests", "5", "-o", "file/made.parquet")
    assert code == 2
    assert "cannot write file/made.parquet" in err


def test_fit_and_synthesise_from_the_fit(shell: Shell) -> None:
    shell("traces", "synth", "azure-code", "--requests", "2000", "-o", "code.csv")
    facts = as_json(shell, "traces", "fit", "code.csv", "-o", "mine.toml")
    assert facts["method"] == "fitted"
    assert facts["bytes"] < 20_000
    assert facts["errors"]["ks_prompt"] < 0.02
    again = as_json(shell, "traces", "synth", "mine.toml", "--requests", "2000", "-o", "again.csv")
    assert again["prompt"]["mean"] == pytest.approx(
        as_json(shell, "traces", "info", "code.csv")["prompt"]["mean"], rel=0.01
    )


def test_fit_by_moments_says_so(shell: Shell) -> None:
    shell("traces", "synth", "azure-code", "--requests", "2000", "-o", "code.csv")
    matched = ("--mean-prompt", "500", "--mean-output", "50", "--requests", "300")
    assert (
        as_json(shell, "traces", "fit", "code.csv", "-o", "other.toml", *matched)["method"]
        == "moment-matched"
    )
    made = as_json(shell, "traces", "synth", "other.toml", "-o", "other.csv")
    assert made["requests"] == 300
    assert made["prompt"]["mean"] == pytest.approx(500, rel=0.02)


def test_fit_refuses_what_is_no_real_trace(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("laminabench.cli.traces.fitting.resolve", _from_the_profile)
    code, _, err = shell("traces", "fit", "azure-conv", "-o", "x.toml")
    assert code == 2
    assert "fetch it first" in err


def _from_the_profile(name: str, **_: object) -> object:
    from laminabench.traces.resolve import resolve  # noqa: PLC0415

    return resolve(name, offline=True, requests=10)


def test_fetch_from_a_folder(shell: Shell, tmp_path: Path) -> None:
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
    assert as_json(shell, "traces", "info", "azure-2024-conv")["source"] == "file"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["traces", "fetch"], "name the traces to fetch, or say --all"),
        (["traces", "fetch", "azure-conf"], "did you mean azure-conv"),
        (["traces", "info", "azure-conv", "--rate-scale", "0"], "0 is not above zero"),
        (["traces", "info", "azure-conv", "--rate-scale", "nan"], "nan is not above zero"),
        (["traces", "info", "azure-conv", "--window", "9:3"], "write seconds as A:B"),
        (["traces", "info", "azure-conv", "--burstiness", "2"], "give that too"),
        (
            ["traces", "info", "sharegpt", "--offline", "-q", "--window", "0:9"],
            "has none; use --num-requests",
        ),
        (["traces", "synth", "azure-conv", "--requests", "0", "-o", "x.csv"], "'--requests'"),
        (["traces", "synth", "azure-conv", "-o", "x.xlsx"], "x.xlsx"),
        (["traces", "synth", "nowhere.toml", "-o", "x.csv"], "nowhere.toml"),
        (["traces", "fit", "x.csv", "-o", "x.json"], "a profile is a .toml file"),
        (["traces", "infos"], "did you mean info"),
    ],
)
def test_wrong_use_is_one_sentence_and_exit_2(shell: Shell, arguments: list[str], said: str) -> None:
    code, out, err = shell(*arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert err.startswith("laminabench: error: ")
    assert err.count("\n") == 1


def test_a_group_alone_shows_its_help(shell: Shell) -> None:
    code, out, err = shell("traces")
    assert (code, out) == (2, "")
    assert "Examples:" in err
