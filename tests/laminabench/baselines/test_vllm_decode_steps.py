"""The vLLM runner: what it makes of orders and flags; with an environment to run it in, what it answers."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import laminabench.baselines

PROGRAM = Path(laminabench.baselines.__file__).parent / "vllm" / "decode_steps.py"
ORDER = {"batch": 4, "prompt_tokens": 20, "output_tokens": 5}
TINY = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,  # of 64 numbers each: vLLM's kernels know few other sizes
    "num_key_value_heads": 1,
    "vocab_size": 256,
    "max_position_embeddings": 512,
}


@pytest.fixture(scope="module")
def program() -> Iterator[ModuleType]:
    """The program as a module: it loads vLLM only when it runs."""
    spec = importlib.util.spec_from_file_location("decode_steps", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def asked(program: ModuleType, text: str) -> dict[str, Any] | str:
    """What an engine with room for 4 requests, 64 tokens and 8 blocks of 16 makes of a line."""
    try:
        order = program.Order.parse(text, program.Limits(4, 64, block_tokens=16, blocks=8))
    except program.OrderError as error:
        return str(error)
    return vars(order)


def test_an_order_is_read(program: ModuleType) -> None:
    assert asked(program, json.dumps(ORDER)) == ORDER


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"batch": 5}, "a batch of 5 is more than --batch-max 4"),
        ({"batch": 0}, "batch is 0, which is no whole number from 1"),
        ({"batch": True}, "batch is true, which is no whole number from 1"),
        ({"output_tokens": 2.0}, "output_tokens is 2.0, which is no whole number from 1"),
        ({"prompt_tokens": "20"}, 'prompt_tokens is "20", which is no whole number from 1'),
        ({"seed": 1}, "an order is an object with batch, prompt_tokens, output_tokens and nothing else"),
        ({"output_tokens": 44}, "more than --max-model-len 64"),
        # 3 a request; 12 tokens would do with 2 each.
        ({"output_tokens": 13}, "12 blocks of 16 tokens are needed, and --kv-bytes gives 8"),
    ],
)
def test_a_bad_order_is_refused_in_one_sentence(
    program: ModuleType, change: dict[str, Any], why: str
) -> None:
    said = asked(program, json.dumps({**ORDER, **change}))
    assert isinstance(said, str)
    assert why in said
    assert "\n" not in said


def test_the_last_token_needs_no_room(program: ModuleType) -> None:
    fits = {"batch": 3, "prompt_tokens": 20, "output_tokens": 12}
    assert asked(program, json.dumps(fits)) == fits
    assert "9 blocks" in str(asked(program, json.dumps({**fits, "output_tokens": 13})))


@pytest.mark.parametrize("line", ["", "[]", "3", "{}", "null", '{"batch": 4', '{"batch": 4}'])
def test_what_is_no_order_is_refused(program: ModuleType, line: str) -> None:
    assert isinstance(asked(program, line), str)


def test_orders_are_answered_in_turn_and_a_bad_one_is_not_the_last(program: ModuleType) -> None:
    class Stand:
        limits = program.Limits(4, 64, block_tokens=16, blocks=8)

        def decode(self, order: Any) -> dict[str, Any]:
            return {"batch": order.batch}

    answers = io.StringIO()
    lines = [json.dumps({**ORDER, "batch": 2}), "\n", "what?", json.dumps({**ORDER, "batch": 1})]
    program.serve(Stand(), lines, answers)
    first, second, third = map(json.loads, answers.getvalue().splitlines())
    assert (first, third) == ({"batch": 2}, {"batch": 1})
    assert second["error"].startswith("the order is no JSON")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    return tmp_path


SIZES = ("--batch-max", "4", "--max-model-len", "64", "--kv-bytes", "1000000")


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (("--batch-max", "0"), "argument --batch-max: '0' is no whole number from 1"),
        (("--kv-bytes", "1e9"), "argument --kv-bytes: '1e9' is no whole number from 1"),
        (("--cores", "0,a"), "argument --cores: '0,a' is no list of cores, as 0,2-3"),
        (("--cores", "0,0"), "names a core twice, or none"),
        (("--cores", "3-2"), "names a core twice, or none"),
        (("--cores", "99999"), "core 99999 of --cores is not among those it may run on"),
        (("--threads", "99999"), "--threads 99999 is more than the"),
        (("--threads", "1", "--cores", "0"), "not allowed with argument"),
        ((), "libiomp5.so is missing: run it with the Python of its environment"),
    ],
)
def test_flags_are_checked_before_vllm_is_loaded(model: Path, flags: tuple[str, ...], why: str) -> None:
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(model), *SIZES, *flags],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert why in done.stderr.splitlines()[-1]


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(tmp_path), *SIZES], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1].endswith("has no config.json")


def test_a_tiny_model_decodes(model: Path) -> None:
    python = os.environ.get("LAMINABENCH_VLLM")
    if not python:
        pytest.skip("set LAMINABENCH_VLLM to the Python of `laminabench baseline setup vllm` to run this")
    orders = [ORDER, {**ORDER, "batch": 5}, {"batch": 1, "prompt_tokens": 1, "output_tokens": 62}]
    done = subprocess.run(
        [python, str(PROGRAM), str(model), *SIZES, "--threads", "1"],
        input="".join(json.dumps(order) + "\n" for order in orders),
        capture_output=True,
        text=True,
        timeout=900,  # it compiles the model, on a machine that may be busy
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    ready, first, refused, last = map(json.loads, done.stdout.splitlines())
    assert ready["ready"] is True
    assert set(ready["versions"]) == {"vllm", "torch", "transformers", "python"}
    assert len(ready["cores"]) == 1
    assert refused == {"error": "a batch of 5 is more than --batch-max 4"}
    for order, answer in ((orders[0], first), (orders[2], last)):
        assert {name: answer[name] for name in order} == order
        assert answer["tokens"] == order["batch"] * order["output_tokens"]
        assert len(answer["steps"]) == order["output_tokens"]
        assert answer["seconds"] == pytest.approx(sum(answer["steps"]))
        assert min(answer["steps"]) > 0
        assert answer["first_step_s"] > 0
