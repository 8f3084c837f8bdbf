"""What the address of the table says: its query, columns, order and page; and addresses like it."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlencode

from starlette.datastructures import QueryParams

from laminabench.render.view.index import Index
from laminabench.render.view.query import field_of

USUAL = (
    *("system", "deployment.name", "model.name", "trace.name", "workload.mode"),
    *("throughput_tokens_per_s", "tbt_ms.p50", "tbt_ms.p99", "slo.token_attainment"),
    *("cost.usd_per_million_tokens", "date"),
)
MOST_COLUMNS = 60


class Asked:
    """What the address says: of a link like it, `with_` changes some."""

    def __init__(self, query: QueryParams, index: Index) -> None:
        self.text = query.get("q", "")
        named = [name for name in query.getlist("col") if name][:MOST_COLUMNS]
        chosen = dict.fromkeys(field_of(name, index) for name in named or USUAL)
        # As they usually are, then others as they were named.
        self.columns = [
            *(name for name in USUAL if name in chosen),
            *(name for name in chosen if name not in USUAL),
        ]
        self.usual = not named
        sort = query.get("sort") or "-date"
        self.down, self.sort = sort.startswith("-"), field_of(sort.removeprefix("-"), index)
        page = query.get("page", "1")
        self.page = int(page) if page.isdecimal() and len(page) < 9 else 1

    def items(self) -> dict[str, object]:
        """As they are in an address."""
        sort = f"-{self.sort}" if self.down else self.sort
        return {
            **({"q": self.text} if self.text else {}),
            **({} if self.usual else {"col": self.columns}),
            **({"sort": sort} if sort != "-date" else {}),
        }

    def with_(self, **changed: object) -> str:
        return address("/", {**self.items(), **changed})


def address(path: str, items: Mapping[str, object]) -> str:
    written = urlencode({name: value for name, value in items.items() if value is not None}, doseq=True)
    return f"{path}?{written}" if written else path
