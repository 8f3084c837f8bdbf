"""plotly's script, as the `report` extra brings it."""

from __future__ import annotations

from laminabench.errors import UserError


def plotly_script() -> str:
    """The whole of plotly.js; nothing is loaded from anywhere else."""
    try:
        from plotly.offline import get_plotlyjs
    except ModuleNotFoundError as error:
        raise UserError(
            "report-needs-plotly",
            "a report needs plotly, which is not installed: pip install 'laminabench[report]'",
        ) from error
    script: str = get_plotlyjs()
    assert "</script" not in script.lower(), "it would end the element that it is in"
    return script
