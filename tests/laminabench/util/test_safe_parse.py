"""Documents of strangers are read within bounds, and what is wrong with them is the reader's own sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from laminabench.catalog.entries import from_path
from laminabench.catalog.find_model import from_config_json, to_hf_config
from laminabench.requests.replay import of_file
from laminabench.runs.format import MANIFEST
from laminabench.runs.live import read_live
from laminabench.runs.read import read_manifest
from laminabench.traces.formats.arrivals import NUMBER
from laminabench.traces.profile import read_profile
from laminabench.util import safe_parse
from laminabench.util.errors import UserError
from laminabench.workflows.check.golden import golden_path, read_golden
from laminabench.workflows.validate.recording import read

DEEP = "[" * 200_000
DIGITS = "9" * 20_000
READERS: dict[str, Callable[[Path], object]] = {
    "cost set": from_path,
    "request": of_file,
    "profile": read_profile,
    "recording": read,
    "model": from_config_json,
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    "text",
    [
        f"a = {DEEP}",
        f"{'a.' * 900}a = 1",
        "a." * 400_000,
        f"a = {DIGITS}",
        '{"a": ' + DEEP,
        '{"a": ' + DIGITS,
        "\xff",
    ],
    ids=[
        "lists",
        "dotted keys",
        "a dotted key without end",
        "digits",
        "lists in JSON",
        "digits in JSON",
        "no text",
    ],
)
def test_what_is_nested_or_long_without_end_is_one_sentence(tmp_path: Path, reader: str, text: str) -> None:
    path = tmp_path / "file"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(UserError):
        READERS[reader](path)


def test_a_run_or_a_golden_nested_without_end_is_one_sentence(tmp_path: Path) -> None:
    for path in (tmp_path / MANIFEST, golden_path(tmp_path, "case")):
        path.write_text('{"format": ' + DEEP)
    with pytest.raises(UserError, match="run-damaged"):
        read_manifest(tmp_path)
    with pytest.raises(UserError, match="golden-damaged"):
        read_golden(tmp_path, "case")


def test_a_model_of_a_billion_layers_is_not_made_room_for(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    for layers in (10**9, 10**30):
        path.write_text(json.dumps(to_hf_config("llama3-70b") | {"num_hidden_layers": layers}))
        with pytest.raises(UserError, match="model-config-unsupported"):
            from_config_json(path)


def test_a_line_of_a_live_file_nested_without_end_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "run.live"
    path.write_text(f'{{"kind": "header", "command": {DEEP}\n')
    with pytest.raises(UserError, match="live-not-live"):
        read_live(path)


def test_a_long_number_that_is_none_takes_no_longer_than_it_is_long() -> None:
    # Where the pattern tries each digit twice, this takes hours.
    assert NUMBER.fullmatch("4" * 400_000 + "x") is None
    assert all(NUMBER.fullmatch(text) for text in ("1", "1.", "1.5", ".5", "-1e9", "+1.5E-3"))
    assert not any(NUMBER.fullmatch(text) for text in ("", ".", "1.5.2", "e9", "1e", "--1"))


def test_implausibly_long_input_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "large.toml"
    with path.open("wb") as file:
        file.truncate(safe_parse.MOST_BYTES + 1)
    with pytest.raises(UserError, match="file-too-large"):
        from_path(path)
    with pytest.raises(UserError, match="file-too-large"):
        from_path(Path("/dev/zero"))


def test_json_is_a_decode_error_whichever_way_it_is_wrong() -> None:
    for data in (b"[" * 200_000, b"\xff", b'"\xff"', b"{"):
        with pytest.raises(msgspec.DecodeError):
            safe_parse.json_typed(data)
    assert safe_parse.json_typed(b"[1]") == safe_parse.json_value("[1]") == [1]


RECORDING = """
name = "made"
model = "llama3-70b"
deployment = "1xh100"
costs = "vllm-0.14"
source = "made up"
engine = "none"
max_num_seqs = 4
max_batched_tokens = 512
[requests]
arrival_us = "0 1 2"
prompt_tokens = "{prompts}"
output_tokens = "1 1 1"
first_token_us = "5 6 7"
last_token_us = "5 6 7"
like = "{like}"
blocks = "{blocks}"
"""


@pytest.mark.parametrize(
    ("prompts", "like", "blocks"),
    [
        ("32 32 2000000000", "-1 0 0", "0 1 1"),
        ("32 32 32", "-1 0 2", "0 1 1"),
        ("32 32 32", "-1 0 0", "0 1 3"),
        ("32 0 32", "-1 0 0", "0 0 1"),
        ("32 99999999999999999999 32", "-1 0 0", "0 0 1"),
    ],
    ids=["a prompt of 2e9 tokens", "as the one after it", "more blocks than it has", "no prompt", "65 bits"],
)
def test_a_recording_of_an_impossible_request_is_refused(
    tmp_path: Path, prompts: str, like: str, blocks: str
) -> None:
    path = tmp_path / "recording.toml"
    path.write_text(RECORDING.format(prompts="32 32 32", like="-1 0 0", blocks="0 1 1"))
    assert len(read(path).trace()) == 3
    path.write_text(RECORDING.format(prompts=prompts, like=like, blocks=blocks))
    with pytest.raises(UserError, match="validation-bad-recording"):
        read(path)
