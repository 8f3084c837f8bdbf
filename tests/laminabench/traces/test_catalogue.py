"""The committed descriptors are complete and read as they should."""

from __future__ import annotations

import pytest

from laminabench.errors import UserError
from laminabench.traces import catalogue
from laminabench.traces.formats import FORMATS

NAMES = {
    "azure-conv",
    "azure-code",
    "kimi-conv",
    "kimi-ta",
    "sharegpt",
    "azure-2024-conv",
    "azure-2024-code",
    "burstgpt",
}
# Table 4 of the Lamina paper.
TABLE_4 = {
    "azure-conv": (19366, 1154.7, 211.1),
    "azure-code": (8819, 2047.8, 27.9),
    "kimi-conv": (12031, 12035.1, 342.6),
    "kimi-ta": (23608, 8560.0, 182.1),
}


def test_every_trace_of_the_project_is_there() -> None:
    assert set(catalogue.entries()) == NAMES


@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_descriptor_says_what_whose_and_where(name: str) -> None:
    entry = catalogue.find(name)
    assert entry.name == name
    assert entry.format in FORMATS
    assert all([entry.description, entry.license, entry.citation])
    assert entry.file.url.startswith("https://")
    assert entry.file.url.endswith(entry.file.name)
    assert entry.profile_path.is_file()
    assert entry.file.sha256 is None or len(entry.file.sha256) == 64


@pytest.mark.parametrize("name", sorted(TABLE_4))
def test_published_statistics_are_those_of_the_paper(name: str) -> None:
    published = catalogue.find(name).published
    assert published is not None
    assert (published.requests, published.mean_prompt_tokens, published.mean_output_tokens) == TABLE_4[name]


def test_an_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(UserError, match="trace-unknown"):
        catalogue.find("azur-conv")
