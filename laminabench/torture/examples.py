"""Scheduler, router, KV memory and simulator on drawn examples, held against plain Python that does the same.

Examples, references and what is asked of them are the tests' own, in the source tree; here they are many.
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from laminabench.torture.tally import Tally

# Of a case. The first one that is drawn is always the simplest there is.
EXAMPLES = 25
_TESTS = Path(__file__).parents[2] / "tests"
_NAMES: Mapping[str, Sequence[str]] = {
    "laminabench/sim/test_sim_reference.py": (
        "test_equals_the_reference",
        "test_equals_the_reference_with_prompts",
    ),
    "laminabench/sim/test_fleet_reference.py": (
        "test_equals_the_reference",
        "test_a_tally_is_what_the_rows_come_to",
    ),
    "laminabench/sim/test_sim_schedule.py": (
        "test_looking_changes_nothing",
        "test_skipping_repeated_layers_is_exact",
    ),
    "lamina/core/test_live_scheduler.py": (
        "test_books_stay_right_whatever_comes_and_goes",
        "test_no_pool_holds_more_than_fits",
    ),
    "lamina/core/test_router.py": ("test_equals_the_reference",),
    "lamina/kv/test_arena.py": ("test_what_was_written_is_read",),
}


class _Drawn(NamedTuple):
    name: str
    holds: Callable[..., None]  # fails where it does not
    strategies: Mapping[str, Any]
    fixed: Mapping[str, Any]  # beside what is drawn


def examples(seeds: Sequence[int]) -> Tally:
    """A case is so many examples of one kind; `tried` counts these."""
    tally = Tally("examples")
    kinds = _kinds()
    for seed in seeds:
        _try(tally, kinds[seed % len(kinds)], seed)
    return tally


def _try(tally: Tally, kind: _Drawn, seed: int) -> None:
    import hypothesis
    from hypothesis import HealthCheck, Phase, Verbosity, given, settings

    count = 0

    @hypothesis.seed(seed)
    @settings(
        max_examples=EXAMPLES,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        verbosity=Verbosity.quiet,
    )
    @given(**kind.strategies)
    def all_hold(**drawn: Any) -> None:
        nonlocal count
        kind.holds(**drawn, **kind.fixed)
        count += 1

    try:
        all_hold()
    except Exception as error:
        tally.add("wrong", kind.name, seed, f"example {count + 1}: {error!r}")
    for _ in range(count):
        tally.add(None, kind.name, seed)


@functools.cache
def _kinds() -> Sequence[_Drawn]:
    """All that is held, once for each set of parameters that a test has beside what is drawn."""
    helpers = str(_TESTS / "helpers")
    if helpers not in sys.path:
        sys.path.append(helpers)
    return [each for path, names in _NAMES.items() for each in _of_file(path, names)]


def _of_file(path: str, names: Sequence[str]) -> Iterator[_Drawn]:
    spec = importlib.util.spec_from_file_location(f"torture_{Path(path).stem}", _TESTS / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    for name in names:
        test = getattr(module, name)
        handle = test.hypothesis
        marks = [mark for mark in getattr(test, "pytestmark", []) if mark.name == "parametrize"]
        for values in itertools.product(*(mark.args[1] for mark in marks)):
            fixed = dict(zip((mark.args[0] for mark in marks), values, strict=True))
            words = [f"{Path(path).stem}::{name}", *(f"{key}={value}" for key, value in fixed.items())]
            yield _Drawn(" ".join(words), handle.inner_test, handle._given_kwargs, fixed)
