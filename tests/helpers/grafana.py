"""The Grafana dashboard, and the metrics that its expressions use."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

DASHBOARD = Path(__file__).parents[2] / "docs" / "grafana" / "laminabench.json"


def dashboard() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    return document


def expressions() -> list[str]:
    """Return the PromQL expressions of panels and of variables."""
    document = dashboard()
    of_panels = [target["expr"] for panel in document["panels"] for target in panel["targets"]]
    return of_panels + [each["definition"] for each in document["templating"]["list"] if "definition" in each]


def metrics_used(prefix: str) -> set[str]:
    """Return the names of the metrics used."""
    return set(re.findall(rf"\b{prefix}[a-z0-9_]+", " ".join(expressions())))
