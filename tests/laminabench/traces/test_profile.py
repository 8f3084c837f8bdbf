"""Profiles as files: small, read back as written, and refused with one sentence when wrong."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from laminabench.traces.profile import (
    Quantiles,
    named_profile,
    parse_profile,
    profile_sha256,
    profile_text,
    read_profile,
    write_profile,
)
from laminabench.util import paths
from laminabench.util.errors import UserError

COMMITTED = sorted((paths.descriptors() / "profiles").glob("*.toml"))
MINIMAL = """
name = "made-up"
method = "parametric"
note = ""
requests = 10
copula = [[1]]
block_tokens = 512
[fitted_to]
source = "nothing"
sha256 = ""
rows = 10
[prompt]
ranks = [0, 1]
values = [1, 100]
[output]
ranks = [0, 0.5, 1]
values = [1, 10, 50]
[arrivals]
bin_s = 10.0
duration_s = 15.0
counts = [5, 5]
[arrivals.gaps]
ranks = [0, 1]
values = [0, 2]
"""


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.stem)
def test_committed_profiles_are_small_canonical_and_say_how_they_were_made(path: Path) -> None:
    profile = read_profile(path)
    text = path.read_text(encoding="utf-8")
    assert len(text.encode()) < 20_000
    assert profile.name == path.stem
    assert profile_text(profile) == text
    assert profile.note or profile.method == "fitted"
    assert (profile.errors is not None) == (profile.method == "fitted")


def test_profiles_that_were_not_fitted_say_so() -> None:
    assert named_profile("kimi-ta").method == "moment-matched"
    assert "Moment-matched, not fitted" in named_profile("kimi-ta").note
    assert named_profile("azure-2024-conv").method == "digitised"
    assert named_profile("burstgpt").method == "parametric"


def test_a_profile_reads_back_as_written(tmp_path: Path) -> None:
    profile = named_profile("kimi-conv")
    path = tmp_path / "again.toml"
    write_profile(profile, path)
    assert read_profile(path) == profile
    assert profile_sha256(read_profile(path)) == profile_sha256(profile)


@given(st.text(st.characters(max_codepoint=0x2FF)))
def test_any_note_survives(note: str) -> None:
    profile = replace(parse_profile(MINIMAL, "x"), note=note)
    assert parse_profile(profile_text(profile), "x") == profile


def test_bytes_that_are_not_utf8_become_escapes() -> None:
    profile = replace(parse_profile(MINIMAL, "x"), note=os.fsdecode(b"caf\xe9"))
    assert parse_profile(profile_text(profile), "x").note == r"caf\udce9"


def test_a_profile_that_is_too_large_is_not_written(tmp_path: Path) -> None:
    profile = replace(named_profile("azure-conv"), note="x" * 20_000)
    with pytest.raises(UserError, match="profile-too-large"):
        write_profile(profile, tmp_path / "large.toml")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ('method = "parametric"', 'method = "guessed"', "method"),
        ("requests = 10", "requests = 0", "requests"),
        ("requests = 10", "requests = true", "requests"),
        ("requests = 10", "requests = 1_000_000_001", "requests"),
        ("block_tokens = 512", "block_tokens = 16_777_217", "block_tokens"),
        ("values = [1, 100]", "values = [1, 16_777_217]", "prompt.values"),
        ("values = [0, 2]", "values = [0, 1e300]", "arrivals.gaps.values"),
        ("bin_s = 10.0", "bin_s = 1e300", "arrivals.bin_s"),
        ("requests = 10", "", "requests"),
        ("requests = 10", "requests = 10\nreqests = 1", "reqests"),
        ("copula = [[1]]", "copula = [[1, 2]]", "copula"),
        ("copula = [[1]]", "copula = [[0]]", "copula"),
        ("copula = [[1]]", 'copula = "x"', "copula"),
        ("copula = [[1]]", "copula = [1]", "copula"),
        ("values = [1, 100]", "values = [100, 1]", "prompt.values"),
        ("values = [1, 100]", "values = [0, 100]", "prompt.values"),
        ("values = [1, 100]", "values = [1, nan]", "prompt.values"),
        ("values = [1, 100]", "values = [1]", "prompt.values"),
        ("ranks = [0, 0.5, 1]", "ranks = [0, 0, 1]", "output.ranks"),
        ("ranks = [0, 0.5, 1]", "ranks = [0.1, 0.5, 1]", "output.ranks"),
        ("duration_s = 15.0", "duration_s = 25.0", "arrivals.duration_s"),
        ("counts = [5, 5]", "counts = [0, 0]", "arrivals.counts"),
        ("counts = [5, 5]", "counts = [0.5, 1]", "arrivals.counts"),
        ('source = "nothing"', "source = 3", "fitted_to.source"),
    ],
)
def test_a_wrong_key_is_named_with_its_file(old: str, new: str, key: str) -> None:
    assert old in MINIMAL
    with pytest.raises(UserError) as caught:
        parse_profile(MINIMAL.replace(old, new, 1), "some/file.toml")
    assert str(caught.value).startswith(f"some/file.toml: key '{key}'")
    assert "\n" not in str(caught.value)


def test_files_that_are_missing_or_no_toml_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="profile-unreadable"):
        read_profile(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("name = ", encoding="utf-8")
    with pytest.raises(UserError, match="profile-not-toml"):
        read_profile(tmp_path / "bad.toml")
    with pytest.raises(UserError, match="trace-unknown"):
        named_profile("azure")


@settings(max_examples=50)
@given(st.lists(st.integers(1, 10**6), min_size=2, max_size=40), st.lists(st.floats(0, 1), max_size=20))
def test_quantiles_interpolate_between_their_knots(values: list[int], at: list[float]) -> None:
    values.sort()
    knots = np.linspace(0, 1, len(values))
    table = Quantiles(tuple(knots.tolist()), tuple(map(float, values)))
    np.testing.assert_allclose(table.at(np.array(at)), np.interp(at, knots, values), rtol=1e-12)
    assert values[0] <= table.mean() <= values[-1]
