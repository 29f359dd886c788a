"""Routes of single items: look at them, add one, take one out."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, File, Form, Path, Response, UploadFile
from pydantic import Field, StringConstraints, TypeAdapter, ValidationError

from nearkin.data.file_names import class_name
from nearkin.errors import DataError, OutputError
from nearkin.serving import schemas
from nearkin.serving.problems import RequestError, mistake_in
from nearkin.serving.service import Service

Id = Annotated[int, Path(ge=0, le=schemas.LARGEST)]
_NAME = Annotated[str, StringConstraints(min_length=1, max_length=100, pattern=r"^\S(.*\S)?$")]
_COLUMNS = TypeAdapter(Annotated[dict[_NAME, schemas.Value | None], Field(max_length=20)])
_MOST_COLUMNS = 100
_ERROR: dict[str, Any] = {"model": schemas.Error}


def router(service: Service) -> APIRouter:
    routes = APIRouter()

    @routes.post("/items", status_code=201, responses={409: _ERROR, 415: _ERROR})
    async def add(
        image: Annotated[UploadFile, File()],
        label: Annotated[schemas.Label | None, Form()] = None,
        columns: Annotated[str | None, Form(description="JSON, by column a value")] = None,
    ) -> schemas.Stored:
        """Add an image. One whose pixels are there already is not added again; a new label counts."""
        given = _columns(columns)
        if len({*given, *(each.name for each in (await service.read(service.overview)).columns)}) > _MOST_COLUMNS:
            raise RequestError(
                422, f"columns: an index has at most {_MOST_COLUMNS} from uploads: use those that it has"
            )
        pixels = await service.decoded(await image.read())
        try:
            stored = await service.write(service.index.add_pixels, pixels, label and class_name(label), given)
        except OutputError:
            raise
        except DataError as error:  # a column that holds something else
            raise RequestError(422, str(error)) from error
        return schemas.Stored(id=stored.id, added=stored.added)

    @routes.post("/items/lookup", responses={404: _ERROR})
    async def lookup(body: schemas.Ids) -> schemas.Items:
        """Several items at once, in the order asked for."""
        found = await service.read(service.check_there, body.ids)
        return schemas.Items(items=[service.shown_item(each) for each in found])

    @routes.get("/items/{id}", responses={404: _ERROR})
    async def get(id: Id) -> schemas.Item:
        """What is known of an item."""
        return service.shown_item((await service.read(service.check_there, [id]))[0])

    @routes.delete("/items/{id}", status_code=204, response_model=None, responses={404: _ERROR, 409: _ERROR})
    async def remove(id: Id) -> None:
        """Take an item out for good; its file stays where it is."""

        def work() -> None:
            service.check_there([id])
            service.index.remove([id])

        await service.write(work)

    @routes.get(
        "/items/{id}/thumbnail",
        response_class=Response,
        responses={200: {"content": {"image/jpeg": {"schema": {"type": "string", "format": "binary"}}}}, 404: _ERROR},
    )
    async def thumbnail(id: Id) -> Response:
        """A small JPEG without EXIF."""
        try:
            content = await service.read(service.index.thumbnail, id)
        except DataError as error:
            raise RequestError(404, f"there is no item {id} in this index") from error
        return Response(content, media_type="image/jpeg", headers={"Cache-Control": "private, max-age=86400"})

    return routes


def _columns(text: str | None) -> dict[str, str]:
    """A manifest's columns are text, of numbers too."""
    if text is None:
        return {}
    try:
        given = _COLUMNS.validate_json(text)
    except ValidationError as error:
        raise mistake_in(error) from error
    return {name: "" if value is None else str(value) for name, value in given.items()}
