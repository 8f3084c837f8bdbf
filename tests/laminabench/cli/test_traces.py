"""The traces commands as a person uses them, in this process; test_main has the shell's view."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:15:{second:02}.0000000,{100 + second},{1 + second}\n" for second in range(40)
)
REAL = {
    "azure-conv": (19366, 1154.697, 211.126),
    "azure-code": (8819, 2047.848, 27.883),
    "kimi-conv": (12031, 12035.061, 342.619),
}

Shell = Callable[..., tuple[int, str, str]]
AsJson = Callable[..., dict[str, Any]]


def test_list_knows_what_is_here(as_json: AsJson, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {row["name"]: row for row in as_json("traces", "list")["traces"]}
    assert len(rows) == 8
    assert rows["azure-conv"]["file"] is None
    assert rows["kimi-ta"]["profile"] == "moment-matched"
    (tmp_path / "AzureLLMInferenceTrace_conv.csv").write_text(AZURE)
    monkeypatch.setenv("LAMINABENCH_TRACES", str(tmp_path))
    rows = {row["name"]: row for row in as_json("traces", "list")["traces"]}
    assert rows["azure-conv"]["file"] == str(tmp_path / "AzureLLMInferenceTrace_conv.csv")


@pytest.mark.parametrize("name", sorted(REAL))
def test_info_on_the_real_files(
    as_json: AsJson, name: str, monkeypatch: pytest.MonkeyPatch, real_traces: Path
) -> None:
    monkeypatch.setenv("LAMINABENCH_TRACES", str(real_traces))
    facts = as_json("traces", "info", name, "--offline")
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
    for suffix in ("png", "svg", "PNG"):
        code, _, err = shell("traces", "info", "mine.csv", "--plot", f"picture.{suffix}")
        assert code == 0, err
        assert Path(f"picture.{suffix}").stat().st_size > 5000
    code, _, err = shell("traces", "info", "mine.csv", "--plot", "picture.bmp")
    assert (code, err) == (
        2,
        "laminabench: error: cannot draw picture.bmp: give it one of the suffixes .png, .svg, .pdf\n",
    )


def test_a_name_is_not_drawn_as_mathematics(shell: Shell) -> None:
    Path("a$b_{$.csv").write_text(AZURE)
    code, _, err = shell("traces", "info", "a$b_{$.csv", "--plot", "x.png")
    assert code == 0, err


def test_info_draws_a_trace_without_arrivals(shell: Shell) -> None:
    code, _, err = shell(
        "traces", "info", "sharegpt", "--offline", "--num-requests", "500", "--plot", "s.png"
    )
    assert code == 0, err


def test_import_keeps_a_file_under_a_name(as_json: AsJson) -> None:
    Path("mine.csv").write_text("t,in,out\n0,10,5\n1.5,20,6\n")
    facts = as_json("traces", "import", "mine.csv", "--columns", "arrival=t,prompt=in,output=out")
    assert (facts["name"], facts["requests"]) == ("mine", 2)
    Path("mine.csv").unlink()
    assert as_json("traces", "info", "mine")["prompt"]["mean"] == 15
    assert [row["name"] for row in as_json("traces", "list")["imported"]] == ["mine"]


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


def test_synth_then_info_then_export(shell: Shell, as_json: AsJson) -> None:
    made = as_json("traces", "synth", "azure-code", "--requests", "500", "--seed", "3", "-o", "made.parquet")
    assert (made["requests"], made["source"], made["seed"]) == (500, "profile", 3)
    facts = as_json("traces", "info", "made.parquet")
    assert (facts["name"], facts["source"], facts["requests"]) == ("azure-code", "profile", 500)
    for suffix in ("csv", "jsonl", "parquet"):
        code, _, err = shell(
            "traces", "export", "made.parquet", "--num-requests", "9", "-o", f"nine.{suffix}"
        )
        assert code == 0, err
        assert (
            as_json("traces", "info", f"nine.{suffix}")["prompt"]
            == as_json("traces", "info", "made.parquet", "--num-requests", "9")["prompt"]
        )


def test_an_unwritable_target_is_one_sentence(shell: Shell) -> None:
    Path("file").write_text("")
    code, _, err = shell("traces", "synth", "azure-code", "--requests", "5", "-o", "file/made.parquet")
    assert code == 2
    assert "cannot write file/made.parquet" in err


def test_brackets_in_names_are_printed_as_they_are(shell: Shell, tmp_path: Path) -> None:
    folder = tmp_path / "[b]x"
    folder.mkdir()
    file = folder / "[bold]a[" / "b].csv"
    file.parent.mkdir()
    file.write_text(AZURE)
    code, out, err = shell("traces", "info", str(file))
    assert code == 0, err
    assert out.startswith(f"b]  the real trace: {file}\n")
    target = folder / "[" / "red].csv"
    assert shell("traces", "export", str(file), "-o", str(target))[1] == f"wrote 40 requests to {target}\n"
    target = target.with_suffix(".toml")
    assert shell("traces", "fit", str(file), "-o", str(target))[1].startswith(f"wrote {target} (")
    shell("traces", "import", str(file), "--name", "mine")


def test_what_a_file_cannot_hold_is_told(shell: Shell) -> None:
    kimi = ("traces", "synth", "kimi-conv", "--requests", "50", "-o")
    assert "k.csv has no prefix blocks, which a CSV cannot hold" in shell(*kimi, "k.csv")[2]
    assert "prefix block" not in shell(*kimi, "k.jsonl")[2]
    halved = ("traces", "export", "k.jsonl", "--scale-lengths", "0.5", "-o")
    assert "does not say that a prefix block is 256 tokens" in shell(*halved, "h.jsonl")[2]
    assert "prefix block" not in shell(*halved, "h.parquet")[2]


def test_synth_says_one_thing_and_the_rest_with_v(shell: Shell) -> None:
    line = ("traces", "synth", "kimi-ta", "--requests", "50", "-o", "k.parquet")
    assert shell(*line)[2].count("\n") == 1
    assert "Moment-matched, not fitted" in shell(*line, "-v")[2]


def test_import_takes_its_name_from_the_file(as_json: AsJson) -> None:
    Path("v1.2.csv").write_text(AZURE)
    assert as_json("traces", "import", "v1.2.csv")["name"] == "v1.2"
    assert as_json("traces", "info", "v1.2")["requests"] == 40


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["traces", "fetch"], "name the traces to fetch, or say --all"),
        (["traces", "fetch", "azure-conf"], "did you mean azure-conv"),
        (["traces", "info", "azure-conv", "--rate-scale", "0"], "'--rate-scale': 0.0 is not in the range"),
        (["traces", "info", "azure-conv", "--rate-scale", "nan"], "'--rate-scale': nan is not a number"),
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
        (["traces", "info", "nowhere.csv", "--plot", "x.bmp"], "cannot draw x.bmp"),
        (["traces", "export", "nowhere.csv", "-o", "x.xlsx"], "cannot write x.xlsx"),
        (["traces", "synth", "azure-conv", "--requests", "1000000001", "-o", "x.csv"], "'--requests'"),
        (["traces", "synth", "~nosuchuser/x.toml", "-o", "x.csv"], "~nosuchuser is nobody here"),
        (["traces", "info", "~nosuchuser/x"], "~nosuchuser is nobody here"),
        (["traces", "fetch", "azure-conv", "--from", "~nosuchuser/x"], "~nosuchuser is nobody here"),
        (
            ["traces", "info", "azure-code", "--offline", "-q", "--rate-scale", "1e-300"],
            "over more than a century",
        ),
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
