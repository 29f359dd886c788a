"""What an index answers with: hits, a label, and what it holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nearkin.index.calibration import VOTERS, Calibration, lead
from nearkin.index.items import Items


@dataclass(frozen=True)
class Hit:
    """An item that a search found."""

    id: int
    score: float
    """The cosine, or minus the distance where the encoder's vectors are compared by distance."""
    confidence: float | None
    """The probability that it is of the query's kind; None where there were no labels to learn that from."""
    label: str | None
    path: str | None
    columns: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Classified:
    """The label that a query's neighbours agree on, or None for "none of these"."""

    label: str | None
    confidence: float | None
    hits: tuple[Hit, ...]


@dataclass(frozen=True)
class Status:
    """What an index holds, and what it does not."""

    path: Path
    items: int
    labelled: int
    labels: int
    found: int
    """Files that were found in all that was added."""
    embedded: int
    duplicates: int
    """Files of these whose content another file has as well."""
    failed: tuple[tuple[str, str], ...]
    """Files that could not be read, and why."""
    left_out: Mapping[str, Sequence[str]]
    """By folder, what lies beside the images."""
    columns: tuple[str, ...]
    dim: int
    distance: str
    encoder: str
    model: str
    model_options: Mapping[str, Any]
    """What was asked of it beside its path: mirror images, the size of crops, other runs next to it."""
    engine: Mapping[str, Any]
    calibration: Calibration | None


def as_hits(
    ids: NDArray[np.int64], scores: NDArray[np.float64], out: set[int], items: Items, calibration: Calibration | None
) -> list[Hit]:
    """Items by their ids and scores, but those in ``out`` and those that have been removed meanwhile."""
    found, hits = items.get(ids.tolist()), []
    for id, score in zip(ids.tolist(), scores.tolist(), strict=True):
        if id in found and id not in out:
            sure = None if calibration is None else calibration.confidence(score)
            hits.append(Hit(id, score, sure, found[id].label, found[id].path, found[id].columns))
    return hits


def one_of_each(hits: Sequence[Hit], group_by: str) -> list[Hit]:
    """The nearest hit of each value of a field."""
    first: dict[Any, Hit] = {}
    for hit in hits:
        value = getattr(hit, group_by) if group_by in ("id", "label", "path") else hit.columns[group_by]
        first.setdefault(value, hit)
    return list(first.values())


def page(hits: list[Hit], group_by: str | None, min_confidence: float | None, offset: int, k: int) -> list[Hit]:
    """The ``k`` hits behind the first ``offset`` of those that are to be shown."""
    if group_by is not None:
        hits = one_of_each(hits, group_by)
    if min_confidence is not None:
        hits = [hit for hit in hits if hit.confidence is not None and hit.confidence >= min_confidence]
    return hits[offset : offset + k]


def classified(hits: Sequence[Hit], min_confidence: float, calibration: Calibration | None) -> Classified:
    """The label with most confidence among hits, or "none of these" where it is less sure than it should be."""
    if not hits:
        return Classified(None, None, ())
    # Votes count as the curve of labels knows them: among more kinds a label is less far ahead anyway.
    curve = None if calibration is None else replace(calibration, shift=0.0)
    votes: dict[str, float] = {}
    for hit in hits:
        votes[str(hit.label)] = votes.get(str(hit.label), 0.0) + (1.0 if curve is None else curve.confidence(hit.score))
    label, ahead = lead(votes)
    if calibration is None:
        return Classified(label, None, tuple(hits))
    surest = max(hits, key=lambda hit: hit.confidence or 0.0)
    sure = surest.confidence or 0.0
    # The curve is of so many votes. A hit that is surer than all votes together is nearly the query's own picture.
    if calibration.label is not None and len(hits) == VOTERS and calibration.label.confidence(ahead) >= sure:
        sure = calibration.label.confidence(ahead)
    else:
        label = str(surest.label)
    return Classified(label if sure >= min_confidence else None, sure, tuple(hits))
