"""Live replays as their files tell of them: where they are, what is new, and how they ended."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
from made_live import DEAD, made_live
from starlette.datastructures import QueryParams

from laminabench.render.view.index import Index
from laminabench.render.view.live_page import live_page, moments
from laminabench.render.view.under_way import Watched
from laminabench.runs.live import End
from laminabench.util.errors import UserError

AT = QueryParams({"at": "runs/x.live"})


class Looked:
    """A folder, looked through anew each time."""

    def __init__(self, root: Path, now: list[float]) -> None:
        self.index, self.now = Index(root), now
        self.watched = Watched(self.index)

    def page(self, query: QueryParams = AT) -> Any:
        self.now[0] += 100
        return live_page(self.index, self.watched, query)

    def news(self, observed: int = 0, began: str = "2026-11-24T12:00:00Z") -> dict[str, Any]:
        self.now[0] += 100
        requested = {"at": "runs/x.live", "seen": str(observed), "began": began}
        return dict(moments(self.index, self.watched, QueryParams(requested)))


@pytest.fixture
def looked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Looked:
    now = [0.0]
    monkeypatch.setattr("laminabench.render.view.index.time.monotonic", lambda: now[0])
    return Looked(folder, now)


def test_one_that_runs(folder: Path, looked: Looked) -> None:
    made_live(folder / "runs/x.live", os.getpid(), steps=40)
    page = looked.page()
    assert page.title == "runs/x, live"
    assert {chart.key for chart in page.charts} == {
        *("live-rate", "live-tbt", "live-batch", "live-kv", "live-finished")
    }
    tbt = next(chart for chart in page.charts if chart.key == "live-tbt")
    assert [len(trace["x"]) for trace in tbt.traces] == [40, 40]
    assert [shape.get("name") for shape in tbt.layout["shapes"]] == ["limit", "fault"]
    assert ">runs</span>" in page.body
    # A tenth in ten seconds.
    assert "1:30 min" in page.body or "90 s" in page.body
    news = looked.news(observed=30)
    assert (len(news["points"]["at_s"]), news["seen"], news["over"]) == (10, 40, False)
    assert news["faults"] == [5.0]
    # What is not known is null and no number.
    assert looked.news()["points"]["tokens_per_s"][0] is None
    end = End(at_s=10.0, state="interrupted", why="terminated", resume="laminabench replay --resume runs/x")
    with (folder / "runs/x.live").open("ab") as file:
        file.write(msgspec.json.encode(end) + b"\n")
    news = looked.news(observed=40)
    assert (news["points"]["at_s"], news["over"]) == ([], True)
    assert "was interrupted" in news["html"]
    assert "<code>laminabench replay --resume runs/x</code>" in news["html"]


def test_one_that_was_killed(folder: Path, looked: Looked) -> None:
    made_live(folder / "runs/x.live", DEAD)
    assert "was killed" in looked.page().body
    assert looked.news()["over"] is True
    listed = looked.page(QueryParams("")).body
    assert "was killed" in listed
    assert "240 of 400" in listed


def test_one_whose_run_is_there(folder: Path, looked: Looked) -> None:
    made_live(folder / "runs/x.live", os.getpid(), steps=4)
    assert looked.news()["over"] is False
    (folder / "runs/x.live").unlink()
    # The Run comes a moment later, or this folder is looked through a moment later.
    assert looked.news()["over"] is False
    with pytest.raises(UserError) as error:
        looked.page()
    assert error.value.code == "view-not-there"
    shutil.copytree(folder / "runs/lamina", folder / "runs/x")
    assert looked.news()["over"] is True
    assert 'href="/compare?run=runs%2Fx"' in looked.page().body


def test_another_in_its_place_is_another_page(folder: Path, looked: Looked) -> None:
    made_live(folder / "runs/x.live", os.getpid(), steps=8)
    assert looked.news(began="2026-01-01T00:00:00Z") == {"reload": True}
    assert looked.news(observed=8)["seen"] == 8
    made_live(folder / "runs/x.live", os.getpid(), steps=3)
    assert looked.news()["seen"] == 3


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\n", b'{"kind":"moment"}\n', b"[]\n" * 100])
def test_what_is_no_such_file_is_left_out(folder: Path, looked: Looked, content: bytes) -> None:
    (folder / "runs/x.live").write_bytes(content)
    assert "No replay is under way" in looked.page(QueryParams("")).body
    with pytest.raises(UserError):
        looked.page()


def test_names_are_shown_and_not_obeyed(folder: Path, looked: Looked) -> None:
    made_live(folder / "runs/x.live", os.getpid(), trace="<script>alert(1)</script>")
    assert "<script>alert" not in looked.page().body
    assert "<script>alert" not in looked.page(QueryParams("")).body
    assert "<script>alert" not in looked.news()["html"]


def test_what_is_copied_from_the_page_is_one_name_from_where_the_explorer_was_started(
    folder: Path, looked: Looked
) -> None:
    path = folder / "runs/a b;touch c.live"
    made_live(path, DEAD)
    result = looked.watched.one("runs/a b;touch c.live")
    assert result is not None
    assert shlex.split(result.resume) == [
        "laminabench",
        "replay",
        "--resume",
        str(folder / "runs/a b;touch c"),
    ]


def test_another_in_its_place_is_read_from_its_beginning(folder: Path, looked: Looked) -> None:
    path = folder / "runs/x.live"
    made_live(path, os.getpid(), steps=8)
    assert looked.news(observed=8)["seen"] == 8
    size = path.stat().st_size
    made_live(path, os.getpid(), steps=16, trace="another")
    # It may have a line's end where the other one ended.
    lines = path.read_bytes().splitlines()
    header, rest = lines[0], b"\n".join(lines[1:]) + b"\n"
    path.write_bytes(header + b" " * (size - len(header) - 1) + b"\n" + rest)
    looked.news()
    result = looked.watched.one("runs/x.live")
    assert result is not None
    assert (result.header.trace, len(result.moments)) == ("another", 16)


@pytest.mark.parametrize("number", ["1" + "0" * 400, "1" + "0" * 18])
@pytest.mark.parametrize("name", ["tokens", "kv_capacity_tokens"])
def test_numbers_without_end_spoil_no_page(folder: Path, looked: Looked, name: str, number: str) -> None:
    made_live(folder / "runs/good.live", os.getpid(), steps=4)
    path = folder / "runs/x.live"
    made_live(path, os.getpid(), steps=4)
    header, *_, last = path.read_text().splitlines()
    header = json.dumps({**json.loads(header), name: 12345}).replace("12345", number)
    last = json.dumps({**json.loads(last), "at_s": 1e300, "tokens": 1, "kv_tokens": 1})
    path.write_text(f"{header}\n{last}\n")
    assert "runs/good" in looked.page(QueryParams("")).body
    looked.news()
