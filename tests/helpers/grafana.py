"""The Grafana dashboard, and the metrics that it asks for."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

DASHBOARD = Path(__file__).parents[2] / "docs" / "grafana" / "laminabench.json"


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    return found


def expressions() -> list[str]:
    """In PromQL, of panels and of variables."""
    found = dashboard()
    asked = [target["expr"] for panel in found["panels"] for target in panel["targets"]]
    return asked + [each["definition"] for each in found["templating"]["list"] if "definition" in each]


def asked_for(prefix: str) -> set[str]:
    """Metrics by name."""
    return set(re.findall(rf"\b{prefix}[a-z0-9_]+", " ".join(expressions())))
