"""Layouts as they are written, and what is refused."""

from __future__ import annotations

import pytest

from laminabench.catalog.layout import Layout, parse_layout
from laminabench.util.errors import UserError


@pytest.mark.parametrize(
    ("text", "devices", "layout"),
    [
        ("tp8", 8, Layout(8)),
        ("ep8", 8, Layout(8, ep=8)),
        ("dp8ep8", 8, Layout(1, 8, 8)),
        ("dp2ep16", 16, Layout(8, 2, 16)),
        ("pp2", 8, Layout(4, pp=2)),
        ("tp4dp2ep8pp2", 16, Layout(4, 2, 8, 2)),
        ("tp1", 1, Layout()),
    ],
)
def test_a_layout_is_read_and_written(text, devices, layout):
    assert parse_layout(text, devices) == layout
    assert parse_layout(str(layout), devices) == layout
    assert layout.devices == devices


@pytest.mark.parametrize("text", ["", "tp", "tp3", "tp8tp8", "xp8", "tp8,ep8", "ep3", "dp0", "pp16", "8"])
def test_what_is_no_layout_of_eight_devices_is_refused(text):
    with pytest.raises(UserError, match="deployment-bad-layout"):
        parse_layout(text, 8)


def test_experts_are_split_over_ranks_that_share_them():
    assert Layout(8, ep=8).expert_tp == 1
    assert Layout(8).expert_tp == 8
    assert Layout(4, 2, 2).expert_tp == 4
