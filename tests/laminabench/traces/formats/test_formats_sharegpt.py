"""ShareGPT conversations, counted by a tokenizer small enough to count along."""

from __future__ import annotations

import json
import sys

import pytest

from laminabench.traces.formats import detect, load_file
from laminabench.util.errors import UserError


@pytest.fixture
def words(tmp_path):
    """A tokenizer.json for which every word is a token; it would cut at two if it were allowed to."""
    tokenizers = pytest.importorskip("tokenizers")
    built = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    built.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    built.enable_truncation(2)
    path = tmp_path / "tokenizer.json"
    built.save(str(path))
    return path


@pytest.fixture
def conversations(trace_file):
    def write(*talks: list[tuple[str, object]]):
        items = [
            {"id": str(n), "conversations": [{"from": role, "value": text} for role, text in talk]}
            for n, talk in enumerate(talks)
        ]
        return trace_file(json.dumps(items), "sharegpt.json")

    return write


def test_every_answer_is_a_request(conversations, words):
    path = conversations(
        [("system", "be kind"), ("human", "a b c"), ("gpt", "d e f g"), ("user", "h"), ("assistant", "i j")],
        [("gpt", "an orphan"), ("human", "why ?"), ("gpt", "")],
        [("human", "\ud800 x"), ("gpt", "ok")],
    )
    assert detect(path) == "sharegpt"
    trace = load_file(path, tokenizer=words)
    assert trace.prompt_tokens.tolist() == [5, 10, 2]
    assert trace.output_tokens.tolist() == [4, 2, 1]
    assert trace.session.tolist() == [0, 0, 2]
    assert not trace.meta.has_arrivals
    assert trace.meta.tokenizer == str(words)
    assert "1 answers follow no prompt" in trace.meta.notes[0]
    assert "1 of 4 requests have no output tokens" in trace.meta.notes[1]


@pytest.mark.parametrize(
    ("talk", "message"),
    [
        ([("human", None), ("gpt", "x")], "conversation 2: turn 1 has null for its value, not text"),
        ([("human", "x"), ("alien", "x")], 'conversation 2: turn 2 is from "alien", not "human", "gpt"'),
        ([(None, "x")], "conversation 2: turn 1 is from null"),
    ],
)
def test_bad_conversations(conversations, words, talk, message):
    path = conversations([("human", "a"), ("gpt", "b")], talk)
    with pytest.raises(UserError) as caught:
        load_file(path, tokenizer=words)
    assert message in str(caught.value)
    trace = load_file(path, tokenizer=words, skip_bad=True)
    assert len(trace) == 1
    assert message in trace.meta.notes[0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", "no requests in it"),
        ("{}", "is an object, not a list of conversations"),
        ("[1, 2]", 'conversation 1: has no list "conversations"'),
        ('[{"conversations": {}}]', 'conversation 1: has no list "conversations"'),
        ('[\n{"a": 1}\n', "sharegpt.json:3: not JSON"),
        ("[" * 100_000, "nested too deeply"),
        (b'[\n"\xff"]', "sharegpt.json:2: holds bytes that are not UTF-8"),
        (b"\xff\xfe[\x00a", "not valid UTF-16-LE"),
        (b"[" + b"9" * 5000 + b"]", "conversation 1: has no list"),
    ],
)
def test_bad_files(trace_file, words, content, message):
    with pytest.raises(UserError) as caught:
        load_file(trace_file(content, "sharegpt.json"), format="sharegpt", tokenizer=words)
    assert message in str(caught.value)


def test_what_is_needed_to_count(conversations, tmp_path, monkeypatch):
    path = conversations([("human", "a"), ("gpt", "b")])
    with pytest.raises(UserError, match="trace-needs-tokenizer"):
        load_file(path)
    with pytest.raises(UserError, match="trace-no-columns-in-conversations"):
        load_file(path, columns={"prompt": "a"})
    (tmp_path / "broken.json").write_text("{}")
    for name in ("broken.json", "missing.json"):
        with pytest.raises(UserError, match="trace-bad-tokenizer"):
            load_file(path, tokenizer=tmp_path / name)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(UserError, match="trace-tokenizers-missing"):
        load_file(path, tokenizer=tmp_path / "broken.json")
