"""A request keeps every choice in its text form, and says what is wrong in one that a person wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from laminabench.cli.flags import parsed
from laminabench.requests.fields import ACTING as REACHING_OUT
from laminabench.requests.fields import Field
from laminabench.requests.replay import (
    BY_KEY,
    FIELDS,
    ReplayRequest,
    of_file,
    of_manifest,
    of_table,
    of_text,
    seconds,
)
from laminabench.util.errors import UserError
from laminabench.util.redact import HIDDEN, Secret

LETTERS = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
TEXT = st.text(LETTERS, min_size=1, max_size=12)
WORDS = {"system": st.sampled_from(["lamina", "vllm"]), "url": st.just("http://127.0.0.1:8000")}
STRETCHES = st.sampled_from(["0:600", ":5", "3:"])


def values(choice: Field) -> st.SearchStrategy[Any]:
    """What the choice's type allows."""
    if choice.name in WORDS:
        return WORDS[choice.name]
    if choice.option.kind == "window":
        return STRETCHES
    if choice.repeatable:
        return st.lists(TEXT, min_size=1, max_size=3).map(tuple)
    return st.one_of([one for kind in choice.alternatives() if (one := of_kind(kind)) is not None])


def of_kind(kind: Any) -> st.SearchStrategy[Any] | None:
    if kind is type(None):
        return None
    if get_origin(kind) is Literal:
        return st.sampled_from(get_args(kind))
    if hasattr(kind, "__metadata__"):
        limits = kind.__metadata__[0]
        if limits.pattern:
            return st.from_regex(limits.pattern, fullmatch=True, alphabet=LETTERS)
        least = limits.ge if limits.gt is None else limits.gt
        if kind.__origin__ is int:
            return st.integers(least, limits.le or least + 10**6)
        return st.floats(least, limits.le, exclude_min=limits.gt is not None)
    return st.booleans() if kind is bool else TEXT


CHOSEN = st.fixed_dictionaries({}, optional={name: values(choice) for name, choice in FIELDS.items()})


@given(CHOSEN)
def test_what_is_written_is_read_back(chosen: dict[str, Any]) -> None:
    chosen.pop("header", None)
    # A switch that is off has no text of its own unless it has an opposite.
    for name in [name for name, value in chosen.items() if value is False and name != "overlap"]:
        del chosen[name]
    request = ReplayRequest(**chosen)
    text = request.text()
    assert of_text(text, "here") == request
    assert of_text(text, "here").text() == text
    assert of_table(request.table(), "here") == request


@given(CHOSEN)
def test_a_request_as_flags_is_the_request(chosen: dict[str, Any]) -> None:
    for name in ("header", "mapping", "policy"):  # secret, or of words that a parser knows
        chosen.pop(name, None)
    request = ReplayRequest(**chosen)
    arguments = request.arguments()
    # What begins with a dash is taken for a flag.
    taken = any(word.startswith("-") and word[2:].removeprefix("no-") not in BY_KEY for word in arguments)
    # And where files are written no folder may be named, such as `/`.
    if not taken and not any(Path(word).is_dir() for word in arguments if "\0" not in word):
        assert of_table(request.table(), "here") == ReplayRequest(**parsed(arguments))


def test_secrets_are_in_no_text() -> None:
    request = ReplayRequest(
        header=("Authorization: Bearer s3cret", "X-Key: s3cret"),
        url="http://me:s3cret@host/",
        system="openai",
    )
    for text in (request.text(), repr(request), " ".join(request.arguments()), str(request.table())):
        assert "s3cret" not in text
    saved = [each.revealed() for each in of_text(request.text(), "here").header]
    assert saved == [f"Authorization: {HIDDEN}", f"X-Key: {HIDDEN}"]


# Of every choice that acts outside of the replay, a value that does.
ACTING = {
    "policy": "own:Policy",
    "router": "own:Router",
    "url": "http://127.0.0.1:8000",
    "ray": "10.0.0.1:6379",
    "metrics_port": 0,
    "header": ("X-Key: s3cret",),
    "api_key_file": "key.txt",
    "directory": "elsewhere",
    "plot": "x.svg",
    "timeline": "x.json",
}


def test_every_choice_says_what_it_reaches() -> None:
    for choice in FIELDS.values():
        free_text = choice.type is str or any(
            kind in (str, Secret) or getattr(kind, "__origin__", None) is str
            for kind in get_args(choice.type)
        )
        assert not free_text or choice.option.reach is not None, choice.name
        assert (choice.option.reach in REACHING_OUT) == (choice.name in ACTING), choice.name


@pytest.mark.parametrize(("name", "value"), ACTING.items())
def test_what_acts_outside_of_a_replay_is_taken_from_no_run(name: str, value: Any) -> None:
    text = ReplayRequest(trace="azure-conv", **{name: value}).text()
    with pytest.raises(UserError, match="request-not-trusted") as error:
        of_manifest(text, "runs/one", {"trace": "other"})
    assert FIELDS[name].flag in str(error.value)
    assert "s3cret" not in str(error.value)
    assert of_manifest(text, "runs/one", {name: value}).trace == "azure-conv"


def test_what_is_only_read_is_taken_from_a_run() -> None:
    saved = {"trace": "mine.csv", "model": "config.json", "costs": "own.toml", "tokenizer": "tokenizer.json"}
    request = ReplayRequest(**saved, policy="sjf", router="least-kv", instances=2, window="0:5")
    assert of_manifest(request.text(), "runs/one", {}) == request


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        ("batchs = 2", "replay-key-unknown", "x.toml has 'batchs', which is not known; did you mean batches"),
        ("slo_tbt_ms = 2", "replay-key-unknown", "did you mean slo-tbt-ms"),
        ("directory = 'x'", "replay-key-unknown", "'directory'"),
        ("batches = 0", "replay-value", "x.toml: batches = 0: Expected int >= 1"),
        ("batches = 'many'", "replay-value", "x.toml: batches = 'many'"),
        ("mode = 'shut'", "replay-value", "x.toml: mode = 'shut': Invalid enum value 'shut'"),
        ("chaos = 'random@t=1s'", "replay-value", "x.toml: chaos = "),
        ("chaos = ['a', 2]", "replay-value", "x.toml: chaos = "),
        ("host-async = 1", "replay-value", "x.toml: host-async = 1"),
        ("slo-tbt-ms = nan", "replay-value", "x.toml: slo-tbt-ms"),
        ("batches = ", "replay-not-toml", "x.toml is not valid TOML"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(
    tmp_path: Path, text: str, code: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("x.toml").write_text(text)
    with pytest.raises(UserError, match=code) as error:
        of_file(Path("x.toml"))
    assert message in str(error.value)


def test_a_run_from_before_requests_were_stored() -> None:
    with pytest.raises(UserError, match="run-too-old"):
        of_manifest(None, "runs/one", {})


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="replay-config-unreadable"):
        of_file(tmp_path / "none.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="replay-not-toml"):
        of_file(tmp_path / "bytes.toml")


@pytest.mark.parametrize(
    ("chosen", "code"),
    [
        ({}, "replay-no-trace"),
        ({"trace": "t", "burstiness": 2.0}, "trace-burstiness"),
        ({"trace": "t", "no_out": True, "directory": "x"}, "replay-output"),
        ({"trace": "t", "batches": 99}, "replay-value"),
    ],
)
def test_choices_that_make_no_replay(chosen: dict[str, Any], code: str) -> None:
    with pytest.raises(UserError, match=code):
        ReplayRequest(**chosen).require_valid()


def test_a_run_keeps_the_files_and_not_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.csv").touch()
    Path("llama3-70b").mkdir()
    request = ReplayRequest(trace="mine.csv", model="llama3-70b", plot="p.svg", directory="x")
    assert request.stored() == ReplayRequest(trace=str(tmp_path / "mine.csv"), model="llama3-70b")


def test_every_choice_has_a_heading_and_a_help() -> None:
    assert all(choice.option.help.endswith(".") for choice in FIELDS.values())
    assert set(BY_KEY) == {field.encode_name for field in msgspec.structs.fields(ReplayRequest)}


@pytest.mark.parametrize("text", ["5", "5:3", "a:b", "-1:3", "nan:3"])
def test_no_stretch_of_seconds(text: str) -> None:
    with pytest.raises(UserError, match="window-invalid"):
        seconds(text, "--window")
