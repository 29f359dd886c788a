"""Every error is answered with a status and one sentence: ``{"error": "…"}``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from python_multipart.exceptions import MultipartParseError
from starlette.exceptions import HTTPException

from nearkin.errors import BusyError, NearkinError, RecipeError
from nearkin.index.items import MissingItemError


class RequestError(HTTPException):
    """A request that cannot be answered, with a reason for its sender."""

    def answer(self) -> JSONResponse:
        return JSONResponse({"error": self.detail}, self.status_code, self.headers)


def handle_errors(app: FastAPI, folder: Path) -> None:
    """Make ``app`` answer errors as described above, without the path ``folder`` of the index."""

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> JSONResponse:
        if not isinstance(error, RequestError):
            text = {404: f"there is nothing at {request.url.path}", 405: "this address does not take this method"}
            error = RequestError(error.status_code, text.get(error.status_code, error.detail), error.headers)
        return error.answer()

    @app.exception_handler(RequestValidationError)
    async def not_valid(request: Request, error: RequestValidationError) -> JSONResponse:
        return invalid(error.errors()).answer()

    @app.exception_handler(MultipartParseError)  # Starlette before 1.0 does not handle it
    async def not_multipart(request: Request, error: MultipartParseError) -> JSONResponse:
        return RequestError(400, str(error)).answer()

    @app.exception_handler(NearkinError)
    async def nearkin_error(request: Request, error: NearkinError) -> JSONResponse:
        if isinstance(error, BusyError):  # its text names the other process and its command
            return RequestError(409, "another process is writing to this index: try again when it has ended").answer()
        status = 404 if isinstance(error, MissingItemError) else 422 if isinstance(error, RecipeError) else 503
        return RequestError(status, str(error).replace(str(folder), "this index")).answer()


def invalid(errors: Sequence[Any]) -> RequestError:
    """The first of pydantic's errors.

    >>> invalid([{"loc": ("body", "k"), "msg": "Input should be greater than 0"}]).detail
    'k: Input should be greater than 0'
    """
    names = [str(name) for name in errors[0]["loc"] if name not in ("body", "path", "query")]
    return RequestError(422, ": ".join([*names[:3], errors[0]["msg"]]))
