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


def test_published_numbers_as_json_and_saved_with_a_figure(as_json: Any, tmp_path: Path) -> None:
    result = as_json("validate", "published", "-o", str(tmp_path / "kept"))
    assert len(result["published"]) == 6
    assert json.loads((tmp_path / "kept" / "validation.json").read_text())["published"] == result["published"]
    assert (tmp_path / "kept" / "published.svg").read_text().startswith("<?xml")
    assert not (tmp_path / "kept" / "recorded.svg").exists()


def test_loads_as_json_and_their_groups_saved(as_json: Any, tmp_path: Path, monkeypatch: Any) -> None:
    few = serving.points()[:1]
    monkeypatch.setattr(serving, "points", lambda: few)
    result = as_json("validate", "serving", "-o", str(tmp_path))["serving"]
    assert [each["concurrency"] for each in result["points"]] == [each.concurrency for each in few]
    assert all(each["errors_percent"]["tpot"] for each in result["points"])
    assert [group["what"] for group in result["groups"]] == ["gpt-oss-120b", "all"]
    assert result["standings"][0]["role"] == "fit"
    saved = json.loads((tmp_path / "validation.json").read_text())["serving"]
    assert saved == {name: result[name] for name in ("groups", "standings")}
    assert (tmp_path / "serving.svg").is_file()


def test_loads_of_a_file_are_judged_in_place_of_the_table(as_json: Any, shell: Any, tmp_path: Path) -> None:
    columns = (
        "system,model_path,backend_version,precision,isl,osl,batch_size,tp_size,attention_dp_size,moe_tp_size,"
        "moe_ep_size,silicon_ttft_ms,silicon_tpot_ms,concurrency,measured"
    )
    file = tmp_path / "rows.csv"
    row = "h200_sxm,openai/gpt-oss-120b,0.10.2,fp4,1024,1024,8,1,1,1,1,105.9,9.059,8,2025-11-02"
    file.write_text(f"{columns}\n{row}\n")
    result = as_json("validate", "--rows", str(file))["serving"]
    assert [each["role"] for each in result["standings"]] == ["judge", "judge"]
    assert result["standings"][0]["loads"] == 1
    file.write_text(f"{columns}\n{row.replace('fp4', 'fp3')}\n{row}\n")
    code, printed, _ = shell("validate", "--rows", str(file))
    assert code == 0
    assert "1 row without a prediction" in printed
    assert "line 2" in printed
    file.write_text(f"{columns}\n{row.replace('fp4', 'fp3')}\n")
    code, _, err = shell("validate", "--rows", str(file))
    assert code == 2
    assert "no settings are known of gpt-oss-120b in fp3" in err


def test_an_own_recording_is_predicted_drawn_and_saved(as_json: Any, tmp_path: Path) -> None:
    own = Path(__file__).parents[3] / "laminabench/workflows/validate/recorded/rtx-4090-llama3.1-8b.toml"
    saved = tmp_path / "mine.toml"
    command = ["validate", "--recorded", str(own), "--costs", "vllm-0.19", "--save", str(saved)]
    result = as_json(*command, "-o", str(tmp_path / "out"))
    assert result.keys() == {"recorded", "board"}
    (row,) = result["recorded"]
    assert (row["costs"], row["missed"]) == ("vllm-0.19", [])
    assert (tmp_path / "out" / "recorded.svg").is_file()
    assert as_json("validate", "--recorded", str(saved))["recorded"] == [row]


def test_worse_than_the_stored_errors_fails(shell: Any, as_json: Any, tmp_path: Path) -> None:
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
