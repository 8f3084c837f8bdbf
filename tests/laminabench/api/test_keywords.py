from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import laminabench as lb
from laminabench.api.keywords import NOT_KEYWORDS, request_of
from laminabench.requests.replay import FIELDS, ReplayRequest


def test_the_signature_names_each_keyword_with_its_default() -> None:
    parameters = inspect.signature(lb.replay).parameters
    assert list(parameters)[:3] == ["trace", "out", "progress"]
    assert parameters["slo_tbt_ms"].default == 100.0
    assert set(parameters) - {"trace", "out", "progress"} == set(FIELDS) - NOT_KEYWORDS


def test_values_of_python() -> None:
    request = request_of(
        ReplayRequest,
        {
            "price": {"h100": 2.5, "h20": 1},
            "window": (0, 12.25),
            "num_requests": np.int64(7),
            "costs": Path("my.toml"),
            "deployment": None,
        },
        "here",
        trace="x",
    )
    assert request == ReplayRequest(
        trace="x", price=("h100=2.5", "h20=1"), window="0:12.25", num_requests=7, costs="my.toml"
    )


@pytest.mark.parametrize(
    ("choices", "code", "message"),
    [
        ({"systm": "lamina"}, "replay-key-unknown", "did you mean system?"),
        ({"directory": "x"}, "replay-key-unknown", "no choice 'directory'"),
        ({"num_requests": "many"}, "replay-value", "num-requests = 'many'"),
        ({"mode": "often"}, "replay-value", "mode = 'often'"),
    ],
)
def test_what_is_no_choice(choices: dict[str, Any], code: str, message: str) -> None:
    with pytest.raises(lb.UserError, match=code) as error:
        lb.replay("profile:azure-conv", **choices)
    assert message in str(error.value)


def test_the_import_loads_nothing() -> None:
    heavy = [
        "numpy",
        "pandas",
        "pyarrow",
        "msgspec",
        "click",
        "rich",
        "matplotlib",
        "torch",
        "laminabench.api",
    ]
    code = f"import sys, laminabench; sys.exit(str([each for each in {heavy} if each in sys.modules] or ''))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == ""


def test_a_replay_loads_no_pandas() -> None:
    code = (
        "import sys, laminabench as lb; run = lb.replay('profile:azure-conv', num_requests=50); repr(run); "
        "sys.exit(str([each for each in ('pandas', 'matplotlib', 'torch', 'plotly') if each in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == "[]"


def test_names() -> None:
    assert set(lb.__all__) <= set(dir(lb))
    assert all(getattr(lb, name) is not None for name in lb.__all__)
    with pytest.raises(AttributeError, match="no attribute 'replays'"):
        lb.replays  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.long  # mypy reads all of the suite
def test_types_are_what_mypy_sees(nowhere: Path) -> None:
    (nowhere / "user.py").write_text(
        "import laminabench as lb\n"
        "run = lb.replay('azure-conv', system='lamina', num_requests=5)\n"
        "reveal_type(run.tbt.p99)\n"
        "reveal_type(lb.compare(run, 'runs/x').ratio('throughput').value)\n"
        "reveal_type(lb.plan('azure-conv', 60.0).binding)\n"
        "lb.replay('azure-conv', num_requests='many')\n"
        "lb.replay('azure-conv', systm='lamina')\n"
    )
    root = Path(__file__).resolve().parents[3]
    called = [sys.executable, "-m", "mypy", "--config-file", str(root / "pyproject.toml"), "user.py"]
    done = subprocess.run(called, cwd=nowhere, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    messages = [line.partition(": ")[2] for line in lines if line.startswith("user.py")]
    assert [each.partition(" is ")[2] for each in messages[:3]] == [
        '"float | int | None"',
        '"float | None"',
        '"str | None"',
    ]
    assert "[arg-type]" in messages[3]
    assert "[call-arg]" in messages[4]
