"""/openapi.json: what FastAPI knows of the endpoints, and the bodies that are parsed without it."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from lamina.http.api import ChatRequest, CompletionRequest

REFERENCE = "#/components/schemas/{model}"
EVENTS = "text/event-stream"


def body_of(model: type[BaseModel]) -> dict[str, Any]:
    """The part of an endpoint's description that says what is posted to it."""
    schema = {"$ref": REFERENCE.format(model=model.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def described(app: FastAPI) -> dict[str, Any]:
    """The whole document, made once."""
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, summary=app.summary, routes=app.routes)
        _, posted = models_json_schema(
            [(CompletionRequest, "validation"), (ChatRequest, "validation")], ref_template=REFERENCE
        )
        document["components"]["schemas"].update(posted["$defs"])
        for path in document["paths"].values():
            for operation in path.values():
                # Bad parameters are answered with 400, as everything that is not understood.
                operation["responses"].pop("422", None)
        for name in ("/v1/completions", "/v1/chat/completions"):
            answered = document["paths"][name]["post"]["responses"]["200"]
            # OpenAPI 3.1 has no way to say what a stream's events are: a schema would be of the whole.
            answered["content"][EVENTS] = {}
        for unused in ("HTTPValidationError", "ValidationError"):
            document["components"]["schemas"].pop(unused, None)
        app.openapi_schema = document
    return app.openapi_schema
