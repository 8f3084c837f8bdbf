"""The words for the source of a replay's requests."""

from __future__ import annotations

from laminabench.render.sheets.replay import source_of
from laminabench.traces.table import TraceMeta


def test_only_a_trace_of_the_catalogue_is_the_real_one() -> None:
    assert source_of(TraceMeta(name="mine")) == "from a file"
    assert source_of(TraceMeta(name="azure-conv", citation="a paper")) == "the real trace"
    assert source_of(TraceMeta(name="azure-conv", source="profile")) == "generated from its profile"
