"""`--csv`: the tables of a command, or its values."""

from __future__ import annotations

import csv
import io
import json

import pytest
from click.testing import CliRunner

from laminabench.cli.main import main


def rows(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text)))


def invoke(*arguments: str) -> str:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_table_is_csv_with_whole_names_and_plain_numbers() -> None:
    table = rows(invoke("models", "list", "--csv"))
    models = json.loads(invoke("models", "list", "--json"))["models"]
    assert [row[0] for row in table[1:]] == [model["name"] for model in models]
    assert {len(row) for row in table} == {len(table[0])}
    traces = rows(invoke("traces", "list", "--csv"))
    requests = [row[traces[0].index("requests")] for row in traces[1:]]
    assert all(each.isdigit() for each in requests if each != "-")


def test_without_a_table_the_values_are_rows() -> None:
    replay = ("replay", "--trace", "profile:azure-conv", "--num-requests", "50", "--no-out")
    values = dict(row for row in rows(invoke(*replay, "--csv")) if len(row) == 2)
    facts = json.loads(invoke(*replay, "--json"))
    assert values["system"] == facts["system"]
    assert float(values["throughput_tokens_per_s"]) == facts["throughput_tokens_per_s"]


@pytest.mark.parametrize("command", ["models", "costs"])
def test_json_and_csv_exclude_each_other(command: str) -> None:
    result = CliRunner().invoke(main, (command, "list", "--json", "--csv"))
    assert result.exit_code == 2
