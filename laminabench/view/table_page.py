"""The table of all Runs: search, filters, any columns, any order."""

from __future__ import annotations

from starlette.datastructures import QueryParams

from laminabench.report.markup import table
from laminabench.view.index import Index
from laminabench.view.page import Page


def table_page(index: Index, query: QueryParams) -> Page:
    rows = index.rows()
    return Page(
        "Runs", table("Runs", ("Run", "system"), [(row.key, row.facts.get("system", "")) for row in rows])
    )
