"""Bad files: one sentence that names file, line and column, and what to do."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from laminabench.traces.formats import load_file, source
from laminabench.util.errors import UserError

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,374,44\n"
TIMED = "arrival_s,prompt_tokens,output_tokens\n0,1,1\n"
UNTIMED = "prompt_tokens,output_tokens\n1,1\n"
JSON = '{"timestamp": 0, "input_length": 6, "output_length": 5, "hash_ids": [0]}\n'


def problem(path: Path, **wishes: object) -> str:
    with pytest.raises(UserError) as caught:
        load_file(path, **wishes)
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    assert len(message.replace(str(path), path.name)) < 250
    return message.replace(f"{path.parent}/", "")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            AZURE + "2023-11-16 18:15:47,abc,1\n",
            'trace:3: ContextTokens is "abc", not a whole number of tokens',
        ),
        (
            AZURE + "2023-11-16 18:15:47,3.5,1\n",
            "trace:3: ContextTokens is 3.5, not a whole number of tokens",
        ),
        (AZURE + "2023-11-16 18:15:47,0,1\n", "trace:3: ContextTokens is 0, below 1"),
        (AZURE + "2023-11-16 18:15:47,1,-2\n", "trace:3: GeneratedTokens is -2, below 0"),
        (AZURE + "2023-11-16 18:15:47,,1\n", "trace:3: ContextTokens is empty"),
        (AZURE + "2023-11-16 18:15:47,99999999,1\n", "is 99999999, more than 16,777,216 tokens"),
        (AZURE + "2023-11-16 18:15:47," + "9" * 5000 + ",1\n", "more than 16,777,216 tokens"),
        (AZURE + "2023-11-16 18:15:47,0x10,1\n", 'is "0x10", not a whole number'),
        (AZURE + "2023-11-16 18:15:47,1_0,1\n", 'is "1_0", not a whole number'),
        (AZURE + "2023-11-16 18:15:47,nan,1\n", 'is "nan", not a whole number'),
        (AZURE + ",1,1\n", "trace:3: TIMESTAMP is empty, not a date-time"),
        (AZURE + "2023-02-29 00:00:00,1,1\n", "not a date-time that exists"),
        (AZURE + "3023-02-21 00:00:00,1,1\n", "not within the years"),
        (AZURE + "2023-11-16 18:15:46Z,1,1\n", "with a time zone, unlike the other rows"),
        (AZURE + "17,1,1\n", "TIMESTAMP is 17, not a date-time"),
        (AZURE + "\n2023-11-16 18:15:46,1\n", "trace:4: has 2 fields where the header has 3; fix"),
        (AZURE + "2023-11-16 18:15:46,1,1,1\n", "trace:3: has 4 fields where the header has 3; fix"),
        (AZURE + '2023-11-16 18:15:46,1,"1\n1,1,1\n', "trace:3: a quote opens in this row and does not end"),
        (AZURE + '2023-11-16 18:15:46,1,"1"x\n', 'trace:3: GeneratedTokens is "1x", not a whole number'),
        (AZURE + "2023-11-16 18:15:46,1,1\0\n", "trace:3: holds a NUL byte"),
        (AZURE.encode() + b"2023-11-16 18:15:46,1,\xff1\n", "trace:3: holds bytes that are not UTF-8"),
        (TIMED + "nan,1,1\n", 'arrival_s is "nan", not a number'),
        (TIMED + "inf,1,1\n", 'arrival_s is "inf", not a number'),
        (TIMED + "1e400,1,1\n", 'arrival_s is "1e400", too large for a time'),
        (TIMED + "2023-11-16,1,1\n", "a date-time, but the other rows hold numbers"),
        ("arrival_s,prompt_tokens,output_tokens\nsoon,1,1\n", "neither a number nor a date-time"),
        (TIMED + "9e18,1,1\n", "too large for a time"),
        (TIMED + "4e18,1,1\n", "over a century"),
        (UNTIMED + "1\n", "trace:3: has 1 fields"),
        (b"", "trace: the file is empty"),
        (" \n\n", "trace: the file is empty"),
        (b"\xef\xbb\xbf", "trace: the file is empty"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "trace: no requests in it"),
        (
            "a,prompt_len\n1,2\n",
            "trace:1: no column for the output; there are: a, prompt_len; name the right ones: "
            "laminabench traces import FILE --columns output=NAME",
        ),
        (
            "a,b\n1,2\n",
            "trace:1: no column for the output or the prompt; there are: a, b; name the right ones: "
            "laminabench traces import FILE --columns output=NAME,prompt=NAME",
        ),
        (
            "arrival_s,prompt_tokens,prompt_tokens,output_tokens\n0,1,1,1\n",
            'column "prompt_tokens" appears 2',
        ),
        ('arrival_s,"prompt_tokens\n', "trace:1: the header has a quote that does not end"),
        (b"\x7fELF\x02\x01\x01\0\0\0\n\n", "trace:1: holds a NUL byte"),
        ("a,b".encode("utf-16-le") + b"\n", "trace:1: holds a NUL byte"),
        (b"\xff\xfea", "trace: not valid UTF-16-LE"),
        (b"PK\x03\x04xxxxxxxx", "is a zip archive; unpack"),
        (JSON + "{\n", "trace:2: is not JSON: "),
        (JSON + "7\n", "trace:2: is 7, not a JSON object"),
        (JSON + "[[1]]\n", "trace:2: is a list, not a JSON object"),
        (JSON + '{"x": ' + "[" * 100_000 + "\n", "trace:2: is nested too deeply"),
        (JSON + '{"timestamp": 1}\n', 'trace:2: has no "input_length"'),
        (JSON.replace("6", "true"), "trace:1: input_length is true, not a whole number"),
        (JSON.replace("6", '"6"'), 'trace:1: input_length is "6", not a whole number'),
        (JSON.replace("6", "null"), "trace:1: input_length is null, not a whole number"),
        (JSON.replace("6", "3.5"), "trace:1: input_length is 3.5, not a whole number"),
        (JSON.replace("6", "NaN"), 'trace:1: input_length is "NaN", not a whole number'),
        (JSON.replace("6", '{"a": 1}'), "trace:1: input_length is an object, not a whole number"),
        (JSON.replace(": 0", ': "0"'), 'trace:1: timestamp is "0", a string, not a number'),
        (JSON.replace(": 0", ": null"), "trace:1: timestamp is null, not a time"),
        (JSON.replace("[0]", "0"), "trace:1: hash_ids is 0, not a list of block ids"),
        (JSON.replace("[0]", "[0.5]"), "trace:1: hash_ids holds 0.5, not a whole number"),
        (JSON.replace("[0]", "[null]"), "trace:1: hash_ids holds null, not a whole number"),
        (JSON.replace("[0]", "[[0]]"), "trace:1: hash_ids holds a list, not a whole number"),
        (JSON.replace("[0]", "[-1]"), "trace:1: hash_ids holds -1, below 0"),
        (JSON.replace("[0]", "[9223372036854775808]"), "hash_ids holds 9223372036854775808, beyond 64 bits"),
        (JSON.replace("0", "5") + JSON.replace("[0]", "{}"), "trace:2: hash_ids is an object, not a list"),
        (JSON.replace("[0]", '[0], "session": {}').replace("timestamp", "time"), "session is an object"),
        (TIMED + '1,"1,1\n' + "2,2,2\n" * 40_000 + '3,3","3"\n', "trace:3: a quote opens in this row"),
        (TIMED + "1," + "1" * (1 << 18) + ",1\n" + "1,1,x\n", "trace:3: has a field longer than"),
        (b"PAR1PAR1PAR1", "trace: the parquet file is damaged"),
    ],
)
def test_the_sentence(trace_file, content, message):
    assert message in problem(trace_file(content))


@pytest.mark.parametrize(
    ("wishes", "message"),
    [
        ({"format": "azur"}, 'no format "azur"; did you mean azure'),
        (
            {"format": "azure"},
            'trace:1: no column for "TIMESTAMP" or "GeneratedTokens" or "ContextTokens"; there are: ',
        ),
        ({"format": "mooncake"}, "trace:1: is not JSON"),
        ({"format": "parquet"}, "trace: the parquet file is damaged or not parquet"),
        ({"format": "sharegpt"}, "pass --tokenizer tokenizer.json"),
        ({"time_unit": "min"}, 'no time unit "min"; there are: s, ms, us, ns'),
        ({"columns": {"promt": "a"}}, '--columns knows no "promt"; did you mean prompt'),
        ({"columns": {"prompt": "promt_tokens"}}, 'no column "promt_tokens"; did you mean prompt_tokens'),
        ({"columns": {"prompt": "x"}}, 'no column "x"; there are: arrival_s, prompt_tokens, output_tokens'),
        ({"columns": {"prompt": "output_tokens"}}, 'column "output_tokens" cannot be two things at once'),
        ({"columns": {"blocks": "arrival_s"}}, "a CSV column cannot hold prefix blocks"),
    ],
)
def test_wishes_that_cannot_be_met(trace_file, wishes, message):
    assert message in problem(trace_file(TIMED), **wishes)


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_skipped_rows_are_counted(tmp_path, kind):
    rows = [("x", 1, 1), (3, 30, 3), (4, 0, 4), (5, 50, 5), (6, 60, -6)]
    names = ("arrival_s", "prompt_tokens", "output_tokens")
    path = tmp_path / "trace"
    if kind == "csv":
        path.write_text("\n".join(",".join(map(str, row)) for row in [names, *rows]))
    else:
        path.write_text("\n".join(json.dumps(dict(zip(names, row, strict=True))) for row in rows))
    trace = load_file(path, skip_bad=True)
    assert trace.prompt_tokens.tolist() == [30, 50]
    assert trace.arrival_s.tolist() == [0, 2]
    line = 2 if kind == "csv" else 1
    first = f'{path}:{line}: arrival_s is "x", '
    assert trace.meta.notes[0].startswith(f"3 bad rows skipped, the first at {first}")


ALL_BAD = "all rows are bad (2), the first at trace:"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (TIMED.replace("0,1,1", "0,0,1\n0,0,1"), ALL_BAD),
        (JSON.replace("6", "0") * 2, ALL_BAD),
        ("{\n{\n", ALL_BAD),
        (TIMED + '1,"1,1\n' + "2,2,2\n" * 9, "trace:3: a quote opens in this row"),
    ],
)
def test_what_cannot_be_skipped(trace_file, content, message):
    assert message in problem(trace_file(content), skip_bad=True)


def test_a_stray_first_row_does_not_settle_how_a_format_writes_times(trace_file):
    trace = load_file(trace_file(AZURE.replace("\n", "\n17,1,1\n", 1)), skip_bad=True)
    assert trace.prompt_tokens.tolist() == [374]
    assert "trace:2: TIMESTAMP is 17, not a date-time" in trace.meta.notes[0]


def test_a_bad_first_row_does_not_hide_the_format(trace_file):
    path = trace_file("{\n" + JSON + JSON.replace(": 0", ": 5"))
    assert load_file(path, skip_bad=True).duration_s == 0.005


def test_a_misspelt_arrival_column_is_mentioned(trace_file):
    trace = load_file(trace_file(AZURE.replace("TIME", "TINE")))
    assert not trace.meta.has_arrivals
    assert trace.meta.notes == (
        "no column with arrival times; if there is one: laminabench traces import FILE --columns "
        "arrival=NAME",
    )


def test_a_line_without_an_end(trace_file, monkeypatch):
    monkeypatch.setattr(source, "MAX_LINE", 1 << 20)
    assert "trace:3: longer than 1 MiB; not a trace" in problem(trace_file(TIMED + "1," + "1" * (1 << 20)))


def test_things_that_are_no_files(tmp_path):
    assert "missing: cannot be read: No such file or directory" in problem(tmp_path / "missing")
    (tmp_path / "folder").mkdir()
    assert "folder: is a folder, not a trace file" in problem(tmp_path / "folder")
    os.mkfifo(tmp_path / "pipe")
    assert "pipe: is a pipe or a device" in problem(tmp_path / "pipe")
    assert "cannot be read: not a file name" in problem(tmp_path / "nul\0nul")


def test_a_file_that_may_not_be_read(trace_file, monkeypatch):
    path = trace_file(TIMED, "secret")

    def refuse(*_: object) -> None:  # root, which tests may run as, reads files of mode 0
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "open", refuse)
    assert "secret: cannot be read: Permission denied" in problem(path)


def test_strange_names_stay_on_one_line(trace_file):
    path = trace_file(TIMED + "1,x\u2028\u202e,1\n", "a\nb\u2028" + "c" * 200)
    assert r'prompt_tokens is "x\u2028\u202e"' in problem(path)
