"""The routes of an index: its contents, search, items, corrections of labels, and the gallery."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path as FilePath
from typing import Annotated, Any, TypeVar

import numpy as np
from fastapi import APIRouter, File, Form, Path, Query, Request, Response, UploadFile
from pydantic import Field, StringConstraints, TypeAdapter, ValidationError
from starlette.datastructures import UploadFile as FormFile

from nearkin.data.folder import class_name
from nearkin.data.image_inputs import too_small
from nearkin.errors import DataError, OutputError
from nearkin.index import corrections
from nearkin.index.index import Stored
from nearkin.index.search import LEAST_SIDE
from nearkin.serving import schemas
from nearkin.serving.errors import RequestError, invalid
from nearkin.serving.schemas import BINARY, ERROR
from nearkin.serving.service import Service

WEB = FilePath(__file__).parent / "web"
Id = Annotated[int, Path(ge=0, le=schemas.LARGEST)]
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_NAME = Annotated[str, StringConstraints(min_length=1, max_length=100, pattern=r"^\S(.*\S)?$")]
_COLUMNS = TypeAdapter(Annotated[dict[_NAME, schemas.Value | None], Field(max_length=20)])
_MOST_COLUMNS = 100
_T = TypeVar("_T")


def router(service: Service) -> APIRouter:
    """All routes but those of the map."""
    routes = APIRouter()
    for add in (_add_search, _add_items, _add_corrections, _add_gallery):
        add(routes, service)

    @routes.get("/health")
    async def health() -> dict[str, Any]:
        """Whether the server works, without a key."""
        return {"status": "ok", "items": await service.read(len, service.index)}

    @routes.get("/index")
    async def index() -> schemas.About:
        """The contents of the index and the limits of requests."""
        return await service.read(_about, service)

    return routes


def _about(service: Service) -> schemas.About:
    status, settings = service.index.status(), service.settings
    return schemas.About(
        **dict(service.contents()),
        name=service.index.path.name,
        distance=status.distance,
        dim=status.dim,
        encoder=status.encoder,
        engine=dict(status.engine),
        confidence=None if status.confidence is None else asdict(status.confidence),
        no_confidence=status.no_confidence,
        limits=schemas.Limits(bytes=settings.max_bytes, pixels=settings.max_pixels, k=settings.max_k),
        read_only=settings.read_only,
        failed=len(status.failed),
    )


def _add_search(routes: APIRouter, service: Service) -> None:
    # FastAPI cannot derive two types of content from a signature.
    template = "#/components/schemas/{model}"
    options, query = (model.model_json_schema(ref_template=template) for model in (schemas.Options, schemas.Query))
    for schema in (options, query):
        schema.pop("$defs", None)
    upload = {
        "type": "object",
        "required": ["image"],
        "properties": {"image": {"type": "string", "format": "binary"}, "options": options},
    }
    content = {"application/json": {"schema": query}, "multipart/form-data": {"schema": upload}}
    body = {"requestBody": {"required": True, "content": content}}

    @routes.post("/search", openapi_extra=body, responses={404: ERROR, 415: ERROR})
    async def search(request: Request) -> schemas.Hits:
        """The nearest items of an uploaded image, an item, a vector, or the examples in ``like``."""
        content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if content_type == "multipart/form-data":
            return await _search_by_image(request, service)
        if content_type == "application/json":
            return await _search_by_json(request, service)
        raise RequestError(415, "send multipart/form-data with a file 'image', or JSON with 'id' or 'vector'")


async def _search_by_image(request: Request, service: Service) -> schemas.Hits:
    async with request.form(max_files=1, max_fields=1) as form:
        image, text = form.get("image"), form.get("options", "{}")
        if not isinstance(image, FormFile) or not isinstance(text, str) or set(form) - {"image", "options"}:
            raise RequestError(422, "send one file 'image', and if wanted a text part 'options' with JSON")
        options = _validated(schemas.Options.model_validate_json, text)
        service.check_limits(options)
        content = await image.read()
    pixels = await service.decoded(content, options.crop)
    height, width = pixels.shape[:2]
    if min(height, width) < LEAST_SIDE:
        raise RequestError(422, f"image: {too_small(width, height, LEAST_SIDE)}")
    vector = await service.embedder.embed(pixels)
    return await service.read(service.search, options, vector, is_image=True)


async def _search_by_json(request: Request, service: Service) -> schemas.Hits:
    query = _validated(schemas.Query.model_validate_json, await request.body())
    service.check_limits(query)
    if query.crop is not None:
        raise RequestError(422, "crop: only an uploaded image can be cropped")
    if (query.id is not None) + (query.vector is not None) > 1:
        raise RequestError(422, "give an id or a vector, not both")
    vector = None if query.vector is None else np.array(query.vector, dtype=np.float64)
    return await service.read(service.search, query, query.id if vector is None else vector, is_image=False)


def _validated(validate: Callable[[str | bytes], _T], content: str | bytes) -> _T:
    try:
        return validate(content)
    except ValidationError as error:
        raise invalid(error.errors()) from error


def _add_items(routes: APIRouter, service: Service) -> None:
    @routes.post("/items", status_code=201, responses={409: ERROR, 415: ERROR})
    async def add(
        image: Annotated[UploadFile, File()],
        label: Annotated[schemas.Label | None, Form()] = None,
        columns: Annotated[str, Form(description="JSON, by column a value")] = "{}",
    ) -> Stored:
        """Add an image. If its pixels are there already, only its label and columns change."""
        parsed = _validated(_COLUMNS.validate_json, columns)
        values = {name: "" if value is None else str(value) for name, value in parsed.items()}
        contents = await service.read(service.contents)
        if len({*values, *(column.name for column in contents.columns)}) > _MOST_COLUMNS:
            raise RequestError(422, f"columns: an index has at most {_MOST_COLUMNS}: use those that it has")
        pixels = await service.decoded(await image.read())
        try:
            return await service.write(service.index.add_pixels, pixels, label and class_name(label), values)
        except OutputError:
            raise
        except DataError as error:  # a value that does not fit its column
            raise RequestError(422, str(error)) from error

    @routes.post("/items/lookup", responses={404: ERROR})
    async def lookup(body: schemas.Ids) -> schemas.Items:
        """Several items at once, in the order of their ids in the request."""
        return schemas.Items(items=await service.read(service.existing, body.ids))

    @routes.post("/items/browse")
    async def browse(body: schemas.Browse) -> schemas.Page:
        """The items that meet the filter ``where``, by ascending id; without a filter all of them."""
        service.check_limits(body)
        return await service.read(service.browse, body)

    @routes.get("/items/{id}", responses={404: ERROR})
    async def get(id: Id) -> schemas.Item:
        """One item."""
        return (await service.read(service.existing, [id]))[0]

    @routes.delete("/items/{id}", status_code=204, response_model=None, responses={404: ERROR, 409: ERROR})
    async def remove(id: Id) -> None:
        """Remove an item for good; its file stays where it is."""
        await service.write(service.index.remove, [id])

    @routes.get(
        "/items/{id}/thumbnail",
        response_class=Response,
        responses={200: {"content": {"image/jpeg": BINARY}}, 404: ERROR},
    )
    async def thumbnail(id: Id) -> Response:
        """A small JPEG without EXIF."""
        content = await service.read(service.index.thumbnail, id)
        return Response(content, media_type="image/jpeg", headers={"Cache-Control": "private, max-age=86400"})


def _add_corrections(routes: APIRouter, service: Service) -> None:
    @routes.post("/corrections", responses={404: ERROR, 409: ERROR})
    async def correct(body: schemas.Correction) -> dict[str, int]:
        """Correct the label of items; null means that it is wrong and the right one unknown."""

        def work() -> int:
            service.existing(body.ids)
            return corrections.correct(service.index, body.ids, body.label and class_name(body.label))

        return {"corrections": await service.write(work)}

    @routes.get("/corrections")
    async def every() -> list[corrections.Correction]:
        """All corrections."""
        rows = await service.read(corrections.corrections, service.index)
        return [replace(row, path=service.visible_path(row.path)) for row in rows]

    @routes.delete("/corrections/{id}", status_code=204, response_model=None, responses={404: ERROR, 409: ERROR})
    async def withdraw(id: Id) -> None:
        """Delete a correction."""
        await service.write(corrections.withdraw, service.index, id)

    @routes.get(
        "/corrections.csv",
        response_class=Response,
        responses={200: {"content": {"text/csv": {"schema": {"type": "string"}}}}},
    )
    async def manifest() -> Response:
        """The images of the index with their corrected labels, for ``nearkin train --data``."""
        if service.settings.hide_paths:
            raise RequestError(403, "paths are hidden on this server, and a manifest is a list of them")
        text = await service.read(corrections.manifest, service.index)
        headers = {"Content-Disposition": 'attachment; filename="corrections.csv"'}
        return Response(text, media_type="text/csv; charset=utf-8", headers=headers)


def _add_gallery(routes: APIRouter, service: Service) -> None:
    # A name in a request is looked up here and never becomes a path.
    files = {file.name: file.read_bytes() for file in WEB.iterdir() if file.suffix in _TYPES}

    @routes.get("/", include_in_schema=False)
    async def page() -> Response:
        return Response(files["index.html"], media_type="text/html")

    @routes.get("/static/{name}", include_in_schema=False)
    async def static(name: str) -> Response:
        if name not in files or name == "index.html":
            raise RequestError(404, "there is no such file")
        return Response(files[name], media_type=_TYPES[FilePath(name).suffix])

    @routes.get("/samples")
    async def samples(n: Annotated[int, Query(ge=1, le=100)] = 24) -> schemas.Items:
        """Random items to begin a search with."""

        def chosen() -> list[schemas.Item]:
            ids = service.index.ids()
            sample = np.random.default_rng().choice(ids, min(n, len(ids)), replace=False)
            return service.shown(service.index.items(sample))

        return schemas.Items(items=await service.read(chosen))
