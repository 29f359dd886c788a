"""Routes of corrections: what people say of labels, and the manifest that comes of it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, Response

from nearkin.data.file_names import class_name
from nearkin.errors import DataError
from nearkin.index import corrections as kept
from nearkin.serving import schemas
from nearkin.serving.items import Id
from nearkin.serving.problems import RequestError
from nearkin.serving.service import Service

_ERROR: dict[str, Any] = {"model": schemas.Error}


def router(service: Service) -> APIRouter:
    routes = APIRouter()

    @routes.post("/corrections", responses={404: _ERROR, 409: _ERROR})
    async def correct(body: schemas.Correction) -> schemas.Corrections:
        """Say what items are; null: not what their label says."""

        def work() -> int:
            service.check_there(body.ids)
            return kept.correct(service.index, body.ids, body.label and class_name(body.label))

        return schemas.Corrections(corrections=await service.write(work))

    @routes.get("/corrections")
    async def every() -> list[schemas.Corrected]:
        """All corrections."""
        found = await service.read(kept.corrections, service.index)
        return [schemas.Corrected(**asdict(each) | {"path": service.shown_path(each.path)}) for each in found]

    @routes.delete("/corrections/{id}", status_code=204, response_model=None, responses={404: _ERROR, 409: _ERROR})
    async def withdraw(id: Id) -> None:
        """Take a correction back."""
        try:
            await service.write(kept.withdraw, service.index, id)
        except DataError as error:
            raise RequestError(404, f"there is no correction of item {id}") from error

    @routes.get(
        "/corrections.csv",
        response_class=Response,
        responses={200: {"content": {"text/csv": {"schema": {"type": "string"}}}}},
    )
    async def manifest() -> Response:
        """The images of the index with their labels as corrected, for ``nearkin train --data``."""
        if service.settings.hide_paths:
            raise RequestError(403, "paths are hidden on this server, and a manifest is a list of them")
        text = await service.read(kept.manifest, service.index)
        headers = {"Content-Disposition": 'attachment; filename="corrections.csv"'}
        return Response(text, media_type="text/csv; charset=utf-8", headers=headers)

    return routes
