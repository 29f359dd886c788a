"""Requests and answers, as the OpenAPI document shows them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictFloat, StrictInt, StrictStr, StringConstraints

LARGEST = 2**53 - 1
"""The largest whole number that every JSON reader represents exactly."""


def _whole(value: Any) -> Any:
    """In JSON 3.0 is the whole number 3."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Id = Annotated[int, Field(ge=0, le=LARGEST), BeforeValidator(_whole)]
Label = Annotated[
    str,
    StringConstraints(
        min_length=1, max_length=200, pattern=r"^[^\s\x00-\x1f\x7f]([^\x00-\x1f\x7f]*[^\s\x00-\x1f\x7f])?$"
    ),
]
Share = Annotated[float, Field(ge=0, le=1)]
Number = Annotated[StrictInt, Field(ge=-LARGEST, le=LARGEST)] | StrictFloat
Value = Number | Annotated[StrictStr, StringConstraints(max_length=1000)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class Error(BaseModel):
    """One sentence with the reason and the remedy."""

    error: str


ERROR: dict[str, Any] = {"model": Error}
BINARY = {"schema": {"type": "string", "format": "binary"}}
"""For the descriptions of answers in the OpenAPI document."""


class Range(_Strict):
    """A range from ``from`` to ``to``, both included; null for an open end."""

    model_config = ConfigDict(populate_by_name=True)
    from_: Value | None = Field(default=None, alias="from")
    to: Value | None = None


class Browse(_Strict):
    """A filter, and a page of the items that meet it."""

    k: Annotated[int, Field(ge=1, le=LARGEST), BeforeValidator(_whole)] = 20
    offset: Annotated[int, Field(ge=0, le=LARGEST), BeforeValidator(_whole)] = 0
    where: dict[str, Value | list[Value] | Range | None] = Field(default_factory=dict)


class Options(Browse):
    """The options of a search."""

    like: list[Id] = Field(default_factory=list)
    unlike: list[Id] = Field(default_factory=list)
    group_by: str | None = None
    min_confidence: float | None = Field(default=None, ge=0, le=1)
    collapse: bool = Field(default=True, description="show copies of one photo once, with their number in 'copies'")
    crop: Annotated[list[Share], Field(min_length=4, max_length=4)] | None = Field(
        default=None,
        description="x, y, width and height as shares from 0 to 1 of the upright picture; of an upload only",
    )


class Query(Options):
    """An id or a vector with the options of a search, or only examples in ``like``."""

    id: Id | None = None
    vector: list[Annotated[float, Field(ge=-1e6, le=1e6)]] | None = None


class Item(BaseModel):
    id: int
    path: str | None
    label: str | None
    columns: dict[str, Any]
    thumbnail: str


class Hit(Item):
    score: float
    confidence: float | None
    copies: int
    copy_ids: list[int]


class LabelGuess(BaseModel):
    """The label of an image by its neighbours; null for "none of these"."""

    label: str | None
    confidence: float | None


class Hits(BaseModel):
    hits: list[Hit]
    offset: int
    k: int
    more: bool
    seconds: float
    label: LabelGuess | None


class Items(BaseModel):
    items: list[Item]


class Page(Items):
    """A page of the items that meet a filter, and their total number."""

    total: int


class Ids(_Strict):
    ids: list[Id]


class Correction(_Strict):
    """The right label of items; null if it is only known that theirs is wrong."""

    ids: Annotated[list[Id], Field(min_length=1)]
    label: Label | None


class LabelCount(BaseModel):
    label: str
    items: int


class Column(BaseModel):
    name: str
    kind: Literal["number", "text"]
    min: float | None
    max: float | None


class Limits(BaseModel):
    bytes: int
    pixels: int
    k: int


class Contents(BaseModel):
    """Counts of an index; the most frequent labels come first."""

    items: int
    labelled: int
    labels: list[LabelCount]
    columns: list[Column]


class About(Contents):
    name: str
    distance: str
    dim: int
    encoder: str
    engine: dict[str, Any]
    confidence: dict[str, Any] | None
    no_confidence: str | None
    limits: Limits
    read_only: bool
    failed: int
