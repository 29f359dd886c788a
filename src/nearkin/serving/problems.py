"""Whatever goes wrong is answered with a status and one sentence: ``{"error": "…"}``."""

from __future__ import annotations

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from nearkin.errors import BusyError, NearkinError, OutputError, RecipeError


class RequestError(Exception):
    """A request that cannot be answered, for a reason that its sender should read."""

    def __init__(self, status: int, text: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(text)
        self.status, self.text, self.headers = status, text, headers or {}

    def answer(self) -> JSONResponse:
        return JSONResponse({"error": self.text}, self.status, self.headers)


def answer_problems(app: FastAPI) -> None:
    """Have ``app`` answer errors as they are described above."""

    @app.exception_handler(RequestError)
    async def told(request: Request, error: RequestError) -> JSONResponse:
        return error.answer()

    @app.exception_handler(RequestValidationError)
    async def not_valid(request: Request, error: RequestValidationError) -> JSONResponse:
        return RequestError(422, first_mistake(list(error.errors()))).answer()

    @app.exception_handler(HTTPException)
    async def by_framework(request: Request, error: HTTPException) -> JSONResponse:
        text = {404: f"there is nothing at {request.url.path}", 405: "not with this method"}.get(error.status_code)
        return RequestError(error.status_code, text or str(error.detail), dict(error.headers or {})).answer()

    @app.exception_handler(NearkinError)
    async def by_index(request: Request, error: NearkinError) -> JSONResponse:
        return problem_of(error).answer()


def problem_of(error: NearkinError) -> RequestError:
    """What an index says, for HTTP."""
    if isinstance(error, RecipeError):
        return RequestError(422, str(error))
    if isinstance(error, BusyError):
        return RequestError(409, str(error))
    if isinstance(error, OutputError):
        return RequestError(503, str(error))
    return RequestError(422, str(error))


def mistake_in(error: ValidationError) -> RequestError:
    """What is wrong with a request's JSON."""
    return RequestError(422, first_mistake([dict(each) for each in error.errors()]))


def first_mistake(errors: list[dict[str, object]]) -> str:
    """
    >>> first_mistake([{"loc": ("body", "k"), "msg": "Input should be greater than 0"}])
    'k: Input should be greater than 0'
    """
    place = errors[0].get("loc", ())
    names = [str(each) for each in place if each not in ("body", "path", "query")] if isinstance(place, tuple) else []
    return ": ".join([*names[:3], str(errors[0].get("msg", "not valid"))])
