"""laminabench: would splitting attention from the model beat what you serve with today, and by how much?

`import laminabench as lb`, then `lb.replay`, `lb.compare`, `lb.plan`, `lb.sweep`, `lb.read` and `lb.traces`:
docs/python.md.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from laminabench.util.version import __version__

if TYPE_CHECKING:
    from laminabench import traces
    from laminabench.api.comparing import compare
    from laminabench.api.comparison import Comparison
    from laminabench.api.planning import Plan, plan
    from laminabench.api.replay import replay
    from laminabench.api.run import Run, read
    from laminabench.api.sweeping import sweep
    from laminabench.util.errors import CheckFailedError, UserError

# The module of each name, imported on first use, so that `import laminabench` is fast.
_PLACES = {
    "Comparison": "api.comparison",
    "compare": "api.comparing",
    "Plan": "api.planning",
    "plan": "api.planning",
    "replay": "api.replay",
    "Run": "api.run",
    "read": "api.run",
    "sweep": "api.sweeping",
    "CheckFailedError": "util.errors",
    "UserError": "util.errors",
}

__all__ = [
    "CheckFailedError",
    "Comparison",
    "Plan",
    "Run",
    "UserError",
    "__version__",
    "compare",
    "plan",
    "read",
    "replay",
    "sweep",
    "traces",
]


def __getattr__(name: str) -> Any:
    if name == "traces":
        return importlib.import_module("laminabench.traces")
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"laminabench.{_PLACES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
