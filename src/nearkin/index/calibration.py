"""How sure an index is of its answers, learned from labelled images that the encoder was not trained on."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from nearkin.evaluation.confidence import (
    FEWEST_CLASSES,
    Bin,
    Confidence,
    Curve,
    Search,
    learn_confidence,
)
from nearkin.evaluation.neighbours import Distance, Floats, Ints, nearest, without_itself
from nearkin.index.items import Items
from nearkin.index.segments import Segments
from nearkin.runs.model import Model

REFIT_GROWTH = 1.05
"""By how much the number of labelled images must grow before confidences are learned again."""
_BLOCK = 1 << 17
"""Vectors that are in memory at a time."""


def calibrate(items: Items, vectors: Segments, model: Model) -> None:
    """Learn and store the confidences of an index, unless its labelled images have hardly grown since last time."""
    before, labelled = items.fact("calibration"), items.rows("SELECT count(label) FROM items")[0][0]
    if before is not None and before["confidence"] is not None and labelled < REFIT_GROWTH * before["labelled"]:
        return
    facts = calibration_facts(items, vectors, model)
    with items.writing():
        items.set_fact("calibration", facts)


def calibration_facts(
    items: Items, vectors: Segments, model: Model, *, without: Collection[int] = ()
) -> Mapping[str, Any]:
    """What an index stores: the confidences, or None and the reason, and the number of labelled images.

    ``without`` are items that are about to be removed.
    """
    rows = items.rows("SELECT id, label, hash FROM items WHERE label IS NOT NULL ORDER BY id")
    rows = [row for row in rows if row[0] not in without]
    learned = _learn(rows, vectors, model)
    if isinstance(learned, str):
        return {"confidence": None, "reason": learned, "labelled": len(rows)}
    return {"confidence": asdict(learned), "reason": None, "labelled": len(rows)}


def _learn(rows: Sequence[Any], vectors: Segments, model: Model) -> Confidence | str:
    """The confidences of labelled items, given by id, label and hash, or the reason why there are none."""
    if not rows:
        return "no image has a label"
    if model.was_trained_on is None:
        return f"{model.path.name} does not tell which images it was trained on: index with its run, or export again"
    ids = np.array([row[0] for row in rows], dtype=np.int64)
    names, labels = np.unique([row[1] for row in rows], return_inverse=True)
    if len(names) < FEWEST_CLASSES:
        return f"it takes {FEWEST_CLASSES} labels, got {len(names)}: add labelled images of other classes"
    unseen = np.flatnonzero([not model.was_trained_on(bytes(row[2]).hex()) for row in rows])
    search = _search_among(vectors, ids, model.distance)
    learned = learn_confidence(labels, unseen, lambda rows: vectors.take(ids[rows]), search, model.distance)
    if isinstance(learned, Confidence):
        return learned
    return (
        f"{learned}: add new images with their labels, or train again with a larger protocol.holdout_share, such as "
        f"0.2; for a final model train the first run so, then --final"
    )


def read_confidence(items: Items) -> tuple[Confidence | None, str | None]:
    """The stored confidences, or the reason why there are none."""
    facts = items.fact("calibration")
    if facts is None:
        return None, "no image has been added yet"
    if facts["confidence"] is None:
        return None, str(facts["reason"])
    stored = facts["confidence"]
    for name in ("hit", "label"):
        slopes, bins = tuple(stored[name]["slopes"]), tuple(Bin(*bin) for bin in stored[name]["bins"])
        stored[name] = Curve(**stored[name] | {"slopes": slopes, "bins": bins})
    return Confidence(**stored), None


def _search_among(vectors: Segments, ids: Ints, distance: Distance) -> Search:
    """A search among the vectors of some items, with a block of them in memory at a time."""

    def search(rows: Ints, k: int) -> tuple[Ints, Floats]:
        queries = vectors.take(ids[rows])
        order, scores = np.empty((len(rows), 0), dtype=np.int64), np.empty((len(rows), 0))
        for first in range(0, len(ids), _BLOCK):
            block = vectors.take(ids[first : first + _BLOCK])
            indices, near = nearest(queries, block, k=min(k + 1, len(block)), distance=distance)
            order, scores = np.hstack([order, first + indices]), np.hstack([scores, near])
            best = np.argsort(-scores, axis=1, kind="stable")[:, : k + 1]
            order, scores = np.take_along_axis(order, best, axis=1), np.take_along_axis(scores, best, axis=1)
        return without_itself(order, scores, rows)

    return search
