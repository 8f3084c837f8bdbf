"""Which page shows which kind of thing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import cast
from urllib.parse import urlencode

from starlette.datastructures import QueryParams

from laminabench.render.html import tag
from laminabench.render.view.folder import Found, Kind
from laminabench.render.view.index import Index
from laminabench.render.view.page import Page, empty
from laminabench.util.errors import UserError

View = Callable[[Found, QueryParams], Page]


@dataclass(frozen=True, slots=True)
class Listed:
    """A kind of thing that has a list, and a page for each."""

    title: str
    address: str
    module: str  # of this package, whose `page` is the View
    none: str  # what is said where there are none


LISTED: dict[Kind, Listed] = {
    "live": Listed("Live", "/live", "live_page", ""),
    "sweep": Listed("Sweeps", "/sweeps", "sweep_page", "`laminabench sweep` leaves one."),
    "plan": Listed("Plans", "/plans", "plan_page", "`laminabench plan --out FOLDER` leaves one."),
    "validation": Listed(
        "Validations", "/validations", "validation_page", "`laminabench validate -o FOLDER` leaves one."
    ),
}


def address_of(found: Found) -> str:
    """Where the browser finds it."""
    if found.kind == "run":
        return f"/compare?{urlencode({'run': found.key})}"
    return f"{LISTED[found.kind].address}?{urlencode({'at': found.key})}"


def list_page(index: Index, kind: Kind) -> Page:
    """All things of a kind, the newest first."""
    listed = LISTED[kind]
    found = sorted(index.refreshed().found[kind].values(), key=lambda each: -each.mtime_ns)
    if not found:
        return Page(listed.title, empty(listed.none))
    links = (tag("li", tag("a", each.key, href=address_of(each))) for each in found)
    return Page(listed.title, tag("ul", *links, class_="things"))


def thing_page(index: Index, kind: Kind, query: QueryParams) -> Page:
    """The page of one, which is looked up among those that there are."""
    found = index.refreshed().found[kind].get(query.get("at", ""))
    if found is None:
        raise UserError(
            "view-not-there",
            f"there is no {kind} at '{query.get('at', '')}' in this folder: it may have gone",
        )
    module = import_module(f"laminabench.render.view.{LISTED[kind].module}")
    return cast("View", module.page)(found, query)
