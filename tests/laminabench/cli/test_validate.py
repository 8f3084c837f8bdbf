"""`laminabench validate`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from laminabench.cli.flags import parsed_line
from laminabench.cli.validate import TWINS
from laminabench.requests.replay import ReplayRequest
from laminabench.systems.registry import prepare
from laminabench.workflows.validate import serving
from laminabench.workflows.validate.twin import of_costs


def test_published_numbers_as_json_and_kept_with_a_picture(as_json: Any, tmp_path: Path) -> None:
    found = as_json("validate", "published", "-o", str(tmp_path / "kept"))
    assert len(found["published"]) == 6
    assert json.loads((tmp_path / "kept" / "validation.json").read_text())["published"] == found["published"]
    assert (tmp_path / "kept" / "published.svg").read_text().startswith("<?xml")
    assert not (tmp_path / "kept" / "recorded.svg").exists()


def test_loads_as_json_and_their_groups_kept(as_json: Any, tmp_path: Path, monkeypatch: Any) -> None:
    few = serving.points()[:1]
    monkeypatch.setattr(serving, "points", lambda: few)
    found = as_json("validate", "serving", "-o", str(tmp_path))["serving"]
    assert [each["concurrency"] for each in found["points"]] == [each.concurrency for each in few]
    assert all(each["errors_percent"]["tpot"] for each in found["points"])
    assert [group["what"] for group in found["groups"]] == ["gpt-oss-120b", "all"]
    assert json.loads((tmp_path / "validation.json").read_text())["serving"] == {"groups": found["groups"]}
    assert (tmp_path / "serving.svg").is_file()


def test_a_recording_of_one_s_own_is_predicted_drawn_and_kept(as_json: Any, tmp_path: Path) -> None:
    own = Path(__file__).parents[3] / "laminabench/workflows/validate/recorded/rtx-4090-llama3.1-8b.toml"
    kept = tmp_path / "mine.toml"
    command = ["validate", "--recorded", str(own), "--costs", "vllm-0.19", "--save", str(kept)]
    found = as_json(*command, "-o", str(tmp_path / "out"))
    assert found.keys() == {"recorded"}
    (row,) = found["recorded"]
    assert (row["costs"], row["missed"]) == ("vllm-0.19", [])
    assert (tmp_path / "out" / "recorded.svg").is_file()
    assert as_json("validate", "--recorded", str(kept))["recorded"] == [row]


def test_worse_than_what_is_kept_fails(shell: Any, as_json: Any, tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    as_json("validate", "published", "-o", str(folder))
    file = folder / "validation.json"
    assert as_json("validate", "published", "--against", str(file))["moved"] == []
    document = json.loads(file.read_text())
    document["published"][0]["error_percent"] -= 1.0
    file.write_text(json.dumps(document))
    code, out, _ = shell("validate published --json", "--against", str(file))
    assert code == 1
    assert [change["worse"] for change in json.loads(out)["moved"]] == [True]


def test_twins_by_default_are_replays_that_can_be_live_and_modelled(core_costs: str) -> None:
    for words in (*TWINS["lamina"], *TWINS["vllm"]):
        request = ReplayRequest(**parsed_line(words), backend="live", costs=core_costs)
        prepare(of_costs(request))
        if request.system == "lamina":  # vLLM may not be here
            prepare(msgspec.structs.replace(request, costs=None))
