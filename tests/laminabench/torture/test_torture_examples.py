"""Drawn examples in short; and that one which does not hold is seen."""

from __future__ import annotations

import pytest

from laminabench.torture import examples


def test_in_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examples, "EXAMPLES", 4)
    kinds = len(examples._kinds())
    tally = examples.examples(range(kinds))
    assert not tally.failures
    assert tally.survived >= kinds * examples.EXAMPLES // 2


def test_an_example_that_does_not_hold_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = next(kind for kind in examples._kinds() if "test_router" in kind.name)

    def holds(**drawn: object) -> None:
        raise AssertionError(f"not of {len(drawn)}")

    monkeypatch.setattr(examples, "_kinds", lambda: [kind._replace(holds=holds)])
    tally = examples.examples([5])
    assert (tally.wrong, tally.failures[0].seed) == (1, 5)
