"""The explorer's addresses: each a page that says all it shows in its link."""

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
from laminabench.render.view.folder import Found, Kind
from laminabench.render.view.guard import EVALUATING
from laminabench.render.view.index import Index
from laminabench.render.view.live_page import live_page, moments
from laminabench.render.view.page import TYPES, Page, Place, empty, packaged
from laminabench.render.view.table_page import columns_page, table_page
from laminabench.render.view.under_way import Watched
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

FOREVER = {"cache-control": "private, max-age=31536000, immutable"}
FRESH = {"cache-control": "no-store"}


def make_app(index: Index) -> FastAPI:
    """Pages over the folder of this index. Guards are not its business."""
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
        said = pages.empty(f"{where}{error.strerror or error}")
        return shown(request, Page("That cannot be read", said), 400)

    @app.exception_handler(Exception)
    def bug(request: Request, error: Exception) -> Response:
        said = f"{type(error).__name__}: {error}; this is a bug of laminabench: please report it"
        return shown(request, Page("That went wrong", pages.empty(said)), 500)

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
    found = index.refreshed().found
    runs = Place("Runs", "/", len(found["run"]), path == "/")
    rest = (
        Place(listed.title, listed.address, len(found[kind]), path == listed.address)
        for kind, listed in LISTED.items()
        if found[kind] or kind == "live" or path == listed.address
    )
    return [runs, *rest]


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
