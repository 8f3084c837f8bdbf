"""A secret is printed and kept nowhere; a command line is kept without its secrets."""

from __future__ import annotations

import copy
import json
import pickle
import shlex

import msgspec
import pytest

from laminabench.requests.replay import ReplayRequest
from laminabench.systems.live.endpoint.setup import fields_of
from laminabench.util.json import json_safe
from laminabench.util.redact import Secret, command_line, hidden, redacted

S = "sup3r-s3cret"


def test_a_secret_is_not_printed() -> None:
    header = Secret(f"X-Key: {S}")
    assert (str(header), repr(header), f"{header:>12}") == ("X-Key: ***", "'X-Key: ***'", "  X-Key: ***")
    assert str(Secret(S)) == "***"
    assert header == Secret(header.revealed())
    assert header != Secret("X-Key: other")
    assert S not in repr((header, {header: [header]}))
    assert not hasattr(header, "__dict__")


def test_a_secret_is_not_kept() -> None:
    request = ReplayRequest(header=(f"X-Key: {S}",), system="openai")
    for one in (Secret(S), request, fields_of(request.header, None)):
        for keep in (json.dumps, msgspec.json.encode, msgspec.msgpack.encode, pickle.dumps, copy.deepcopy):
            with pytest.raises(TypeError):
                keep(one)
        assert S not in str(json_safe({"one": repr(one)}))
    assert S not in f"{request} {request.text()} {request.arguments()} {request.table()}"


@pytest.mark.parametrize(
    "words",
    [
        ["replay", "--header", f"X-Key: {S}", "--trace", "t"],
        ["replay", f"--header=X-Key: {S}"],
        ["replay", "--header", "X-Key:", S],
        ["replay", "--header=Authorization:", "Bearer", S],
        ["replay", "--header", S],
        ["replay", "--url", f"http://me:{S}@host/v1"],
        ["compare", "--live", f"--system openai --header 'X-Key: {S}'", "--live", "--system vllm"],
        ["compare", f"--live=--system openai --header='Authorization: Bearer {S}'"],
        ["compare", "--live", f'--header "X-Key: {S}'],  # a quote without its other
        ["validate", "--twin", f"--system openai --header 'X-Key: {S}'"],
    ],
)
def test_a_command_line_is_without_secrets_and_the_same_otherwise(words: list[str]) -> None:
    saved = command_line(words)
    assert S not in saved
    assert len(redacted(words)) == len(words)
    assert shlex.split(saved)[0] == words[0]
    assert S not in hidden(f"laminabench: error: cannot understand {words[-1]} ({S})", words)
    plain = ["replay", "--trace", "header: x", "--url", "http://host:8000/v1", "--live", "--system 'a b'"]
    assert redacted(plain) == plain
