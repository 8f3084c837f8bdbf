"""The explorer's addresses: each page's link holds all choices that it shows."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path, PurePath
from typing import cast
from urllib.parse import urlencode

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse
from starlette.datastructures import QueryParams

from laminabench.render.html import tag
from laminabench.render.view import page as pages
from laminabench.render.view.compare_page import compare_page, export
from laminabench.render.view.folder import Entry, Kind
from laminabench.render.view.guard import EVALUATING
from laminabench.render.view.index import Index
from laminabench.render.view.live_page import live_page, moments
from laminabench.render.view.page import TYPES, Page, Place, empty, packaged
from laminabench.render.view.table_page import columns_page, table_page
from laminabench.render.view.under_way import Watched
from laminabench.util.errors import UserError

View = Callable[[Entry, QueryParams], Page]


@dataclass(frozen=True, slots=True)
class Listed:
    """A kind of result with a list, and a page for each entry."""

    title: str
    address: str
    module: str  # of this package, whose `page` is the View
    none: str  # notice if there are none


LISTED: dict[Kind, Listed] = {
    "live": Listed("Live", "/live", "live_page", ""),
    "sweep": Listed("Sweeps", "/sweeps", "sweep_page", "`laminabench sweep` leaves one."),
    "plan": Listed("Plans", "/plans", "plan_page", "`laminabench plan --out FOLDER` leaves one."),
    "validation": Listed(
        "Validations", "/validations", "validation_page", "`laminabench validate -o FOLDER` leaves one."
    ),
}

FOREVER = {"cache-control": "private, max-age=31536000, immutable"}
FRESH = {"cache-control": "no-store"}


def make_app(index: Index) -> FastAPI:
    """Make the app that serves this index's folder, without access control."""
    app = FastAPI(title="laminabench view", docs_url=None, redoc_url=None, openapi_url=None)
    watched, root = Watched(index), index.root
    folder = str(root if root != Path() else root.resolve())

    def shown(request: Request, page: Page, status: int = 200) -> Response:
        if "part" in request.query_params:
            return JSONResponse(pages.part(page), status, FRESH)
        places = _places(index, request.url.path)
        headers = FRESH | ({"content-security-policy": EVALUATING} if page.evaluates else {})
        return HTMLResponse(pages.document(page, folder, places), status, headers)

    @app.exception_handler(UserError)
    def wrong(request: Request, error: UserError) -> Response:
        status = 404 if error.code == "view-not-there" else 400
        return shown(request, Page("That cannot be shown", pages.empty(str(error))), status)

    @app.exception_handler(OSError)
    def unreadable(request: Request, error: OSError) -> Response:
        where = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, str | bytes) else ""
        problem = pages.empty(f"{where}{error.strerror or error}")
        return shown(request, Page("That cannot be read", problem), 400)

    @app.exception_handler(Exception)
    def bug(request: Request, error: Exception) -> Response:
        problem = f"{type(error).__name__}: {error}; this is a bug of laminabench: please report it"
        return shown(request, Page("That went wrong", pages.empty(problem)), 500)

    @app.exception_handler(404)
    def nowhere(request: Request, _: HTTPException) -> Response:
        return shown(request, Page("There is no such page", pages.empty("Start from the Runs, above.")), 404)

    @app.get("/")
    def table(request: Request) -> Response:
        return shown(request, table_page(index, request.query_params))

    @app.get("/columns")
    def columns(request: Request) -> Response:
        return shown(request, columns_page(index, request.query_params))

    @app.get("/news")
    def news() -> Response:
        counts = {each.address: each.count for each in _places(index, "")}
        return JSONResponse({"version": index.version, "counts": counts}, headers=FRESH)

    @app.get("/compare")
    def compare(request: Request) -> Response:
        return shown(request, compare_page(index, request.query_params))

    @app.get("/export")
    def exported(request: Request) -> Response:
        headers = {**FRESH, "content-disposition": 'attachment; filename="report.html"'}
        return HTMLResponse(export(index, request.query_params), headers=headers)

    @app.get("/live")
    def live(request: Request) -> Response:
        return shown(request, live_page(index, watched, request.query_params))

    @app.get("/live/moments")
    def live_moments(request: Request) -> Response:
        return JSONResponse(moments(index, watched, request.query_params), headers=FRESH)

    def things(request: Request) -> Response:
        query, kind = request.query_params, kinds[request.url.path]
        page = thing_page(index, kind, query) if "at" in query else list_page(index, kind)
        return shown(request, page)

    kinds: dict[str, Kind] = {listed.address: kind for kind, listed in LISTED.items() if kind != "live"}
    for address in kinds:
        app.get(address)(things)

    @app.get("/static/{digest}/{name}")
    def static(name: str) -> Response:
        content = packaged(name)
        if content is None:
            raise HTTPException(404)
        return Response(content, media_type=TYPES[PurePath(name).suffix], headers=FOREVER)

    return app


def _places(index: Index, path: str) -> list[Place]:
    entries = index.refreshed().entries
    runs = Place("Runs", "/", len(entries["run"]), path == "/")
    rest = (
        Place(listed.title, listed.address, len(entries[kind]), path == listed.address)
        for kind, listed in LISTED.items()
        if entries[kind] or kind == "live" or path == listed.address
    )
    return [runs, *rest]


def address_of(entry: Entry) -> str:
    """Return the address of an entry's page."""
    if entry.kind == "run":
        return f"/compare?{urlencode({'run': entry.key})}"
    return f"{LISTED[entry.kind].address}?{urlencode({'at': entry.key})}"


def list_page(index: Index, kind: Kind) -> Page:
    """Return the list of a kind's entries, newest first."""
    listed = LISTED[kind]
    entries = sorted(index.refreshed().entries[kind].values(), key=lambda each: -each.mtime_ns)
    if not entries:
        return Page(listed.title, empty(listed.none))
    links = (tag("li", tag("a", each.key, href=address_of(each))) for each in entries)
    return Page(listed.title, tag("ul", *links, class_="things"))


def thing_page(index: Index, kind: Kind, query: QueryParams) -> Page:
    """Return the page of one entry, which must be in the index."""
    entry = index.refreshed().entries[kind].get(query.get("at", ""))
    if entry is None:
        raise UserError(
            "view-not-there",
            f"there is no {kind} at '{query.get('at', '')}' in this folder: it may have been removed",
        )
    module = import_module(f"laminabench.render.view.{LISTED[kind].module}")
    return cast("View", module.page)(entry, query)
