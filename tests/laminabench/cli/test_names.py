"""Files and folders of any name that the system allows are written and read back."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

RESULT = Path(__file__).parents[1] / "interchange" / "data" / "vllm.json"
REPLAY = ("--trace", "t.csv", "--system", "vllm", "--offline", "-q")
# With a scheme that Arrow knows, and one that it does not.
NAMES = ("s3:run", "abc:def")


@pytest.mark.parametrize("name", NAMES)
def test_any_name_is_written_and_read(name: str, printed: Any) -> None:
    Path("t.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,100,20\n1,200,30\n")
    printed("replay", *REPLAY, "--out", name)
    printed("report", name, "-o", f"{name}.html")
    printed("sweep", *REPLAY, "--vary", "seed=1,2", "--out", f"{name} sweep")
    printed("sweep", *REPLAY, "--vary", "seed=1,2", "--out", f"{name} sweep", "--plot", f"{name}.svg")
    printed("traces", "export", "t.csv", "-o", f"{name}.parquet")
    printed("traces", "info", f"{name}.parquet")
    shutil.copy(RESULT, f"{name}.json")
    printed("import", f"{name}.json", "--out", f"{name} imported")
    printed("export", f"{name} imported", "--to", "vllm-bench", "-o", f"{name} exported.json")


def test_a_name_that_is_not_utf8(shell: Any, refused: Any) -> None:
    name = os.fsdecode(b"\xff")
    Path("t.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,100,20\n1,200,30\n")
    refused("is not UTF-8", "replay", *REPLAY, "--out", name)
    assert shell("traces", "export", "t.csv", "-o", f"{name}.parquet")[0] == 0
    assert shell("traces", "info", f"{name}.parquet")[0] == 0
    shutil.copy(RESULT, f"{name}.json")
    refused("is not UTF-8", "import", f"{name}.json", "--out", "run")
    refused("is not UTF-8", "import", str(RESULT), "--out", name)


def test_half_of_a_character_in_a_result_is_refused(refused: Any) -> None:
    Path("odd.json").write_text(RESULT.read_text().replace('"model_id":"', '"model_id":"\\ud800', 1))
    refused("half of a character", "import", "odd.json", "--out", "run")
