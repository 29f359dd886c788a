"""Whatever goes wrong is answered with a status and one sentence: ``{"error": "…"}``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from python_multipart.exceptions import MultipartParseError
from starlette.exceptions import HTTPException

from nearkin.errors import BusyError, NearkinError, RecipeError


class RequestError(HTTPException):
    """A request that cannot be answered, for a reason that its sender should read."""

    def answer(self) -> JSONResponse:
        return JSONResponse({"error": self.detail}, self.status_code, self.headers)


def answer_problems(app: FastAPI, folder: Path) -> None:
    """Have ``app`` answer errors as they are described above; ``folder`` is the index's, which is not shown."""

    @app.exception_handler(HTTPException)
    async def told(request: Request, error: HTTPException) -> JSONResponse:
        if not isinstance(error, RequestError):
            text = {404: f"there is nothing at {request.url.path}", 405: "this address does not take this method"}
            error = RequestError(error.status_code, text.get(error.status_code, error.detail), error.headers)
        return error.answer()

    @app.exception_handler(RequestValidationError)
    async def not_valid(request: Request, error: RequestValidationError) -> JSONResponse:
        return RequestError(422, first_mistake(error.errors())).answer()

    @app.exception_handler(MultipartParseError)  # which Starlette before 1.0 lets through
    async def no_form(request: Request, error: MultipartParseError) -> JSONResponse:
        return RequestError(400, str(error)).answer()

    @app.exception_handler(NearkinError)
    async def by_index(request: Request, error: NearkinError) -> JSONResponse:
        if isinstance(error, BusyError):  # who and by which command is nothing for the Internet
            return RequestError(409, "another process is writing to this index: try again when it has ended").answer()
        text = str(error).replace(str(folder), "this index")
        return RequestError(422 if isinstance(error, RecipeError) else 503, text).answer()


def mistake_in(error: ValidationError) -> RequestError:
    """What is wrong with a request's JSON."""
    return RequestError(422, first_mistake([dict(each) for each in error.errors()]))


def first_mistake(errors: Sequence[Mapping[str, Any]]) -> str:
    """
    >>> first_mistake([{"loc": ("body", "k"), "msg": "Input should be greater than 0"}])
    'k: Input should be greater than 0'
    """
    names = [str(each) for each in errors[0].get("loc", ()) if each not in ("body", "path", "query")]
    return ": ".join([*names[:3], str(errors[0].get("msg", "not valid"))])
