"""A router of the user's own: found, asked, and refused with a code where it is not one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from made_outcome import trace_of

from laminabench.systems.router import BUILT_IN, own_router, require_known, require_prefixes
from laminabench.util.errors import UserError

NONE = np.zeros(0, np.int64)
MODULE = """
import numpy

class Emptiest:
    def __init__(self, instances):
        self.instances = instances
    def route(self, prompt_tokens, output_tokens, prefix, requests, kv_tokens):
        return numpy.argmin(kv_tokens)

class Last(Emptiest):
    def route(self, *_):
        return self.instances

class Raises(Emptiest):
    def route(self, *_):
        raise SystemExit(3)

class Vague(Emptiest):
    def route(self, *_):
        return None

class NoRoute:
    def __init__(self, instances):
        pass
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_own_router.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("here")
def test_it_chooses_by_what_each_instance_has() -> None:
    route = own_router("my_own_router:Emptiest", 3)
    assert route(10, 5, NONE, np.array([1, 1, 1]), np.array([30, 10, 20])) == 1


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("name", ["Last", "Raises", "Vague"])
def test_what_it_does_wrong_is_a_sentence(name: str) -> None:
    route = own_router(f"my_own_router:{name}", 2)
    with pytest.raises(UserError) as caught:
        route(10, 5, NONE, np.zeros(2, np.int64), np.zeros(2, np.int64))
    assert caught.value.code == "router-failed"


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("name", ["my_own_router:NoRoute", "my_own_router:Missing", "no_such_module_:A", ":"])
def test_one_that_cannot_be_had_is_refused(name: str) -> None:
    with pytest.raises(UserError) as caught:
        own_router(name, 2)
    assert caught.value.code == "router-failed"


def test_a_name_that_is_not_known_is_refused() -> None:
    for name in (*BUILT_IN, "mine:Router"):
        require_known(name)
    for refuse in (require_known, lambda name: own_router(name, 2)):
        with pytest.raises(UserError) as caught:
            refuse("best")
        assert caught.value.code == "router-unknown"


def test_a_trace_that_does_not_know_its_prefixes_is_refused() -> None:
    trace = trace_of([10, 10], [5, 5])
    require_prefixes("least-kv", trace)
    with pytest.raises(UserError) as caught:
        require_prefixes("prefix", trace)
    assert caught.value.code == "router-no-prefixes"
