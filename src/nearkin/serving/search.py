"""The route that people come for: POST /search, with an upload or with JSON."""

from __future__ import annotations

from typing import Any

import numpy as np
from fastapi import APIRouter, Request
from pydantic import ValidationError
from starlette.datastructures import UploadFile

from nearkin.serving import schemas
from nearkin.serving.problems import RequestError, mistake_in
from nearkin.serving.service import Service

_REF = "#/components/schemas/{model}"


def router(service: Service) -> APIRouter:
    routes = APIRouter()

    @routes.post("/search", openapi_extra={"requestBody": _body()}, responses={404: _error(), 415: _error()})
    async def search(request: Request) -> schemas.Hits:
        """The nearest items of an uploaded image, an item, a vector, or of what is in ``like``."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind == "multipart/form-data":
            return await _by_image(request, service)
        if kind == "application/json":
            return await _by_json(request, service)
        raise RequestError(
            415, "send multipart/form-data with a file 'image', or application/json with 'id' or 'vector'"
        )

    return routes


async def _by_image(request: Request, service: Service) -> schemas.Hits:
    async with request.form(max_files=1, max_fields=1) as form:
        image, text = form.get("image"), form.get("options", "{}")
        if not isinstance(image, UploadFile) or not isinstance(text, str) or set(form) - {"image", "options"}:
            raise RequestError(422, "send one file 'image', and if wanted a text part 'options' with JSON")
        options = _read(schemas.Options, text.encode(), service)
        content = await image.read()
    vector = await service.embedder.vector_of(await service.decoded(content, options.crop))
    return await service.read(service.search, options, vector, is_image=True)


async def _by_json(request: Request, service: Service) -> schemas.Hits:
    query = _read(schemas.Query, await request.body(), service)
    if query.crop is not None:
        raise RequestError(422, "crop: only an uploaded image can be cropped")
    if (query.id is not None) + (query.vector is not None) > 1:
        raise RequestError(422, "give an id or a vector, not both")
    vector = None if query.vector is None else np.array(query.vector, dtype=np.float64)
    return await service.read(service.search, query, query.id if vector is None else vector, is_image=False)


def _read(model: type[Any], content: bytes, service: Service) -> Any:
    try:
        options = model.model_validate_json(content)
    except ValidationError as error:
        raise mistake_in(error) from error
    for name, value, most in (
        ("k", options.k, service.settings.max_k),
        ("offset", options.offset, service.settings.max_offset),
    ):
        if value > most:
            raise RequestError(422, f"{name}: at most {most:,}, got {value:,}")
    return options


def _error() -> dict[str, Any]:
    return {"model": schemas.Error}


def _body() -> dict[str, Any]:
    """Two ways to ask, which FastAPI cannot tell from a signature."""
    options = schemas.Options.model_json_schema(ref_template=_REF)
    query = schemas.Query.model_json_schema(ref_template=_REF)
    for each in (options, query):
        each.pop("$defs", None)
    upload = {
        "type": "object",
        "required": ["image"],
        "properties": {"image": {"type": "string", "format": "binary"}, "options": options},
    }
    return {
        "required": True,
        "content": {"application/json": {"schema": query}, "multipart/form-data": {"schema": upload}},
    }
