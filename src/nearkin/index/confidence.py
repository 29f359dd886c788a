"""How an index comes by its curve of confidence, and keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nearkin.index import calibration
from nearkin.index.calibration import Bin, Calibration, LabelCurve
from nearkin.index.items import Items
from nearkin.index.segments import Segments
from nearkin.runs.model import Model

ENOUGH_MORE = 1.05
"""By how much labelled images must have grown for a curve that was fitted on them to be fitted anew."""


def calibrate(items: Items, vectors: Segments, model: Model) -> None:
    """Fit the curve on classes held out from training, or on the index's own labels without any, and write it down.

    Held-out classes stay what they are; the index's own labels may have become more. A few more make no other curve,
    and fitting takes longer than adding an image.
    """
    before, labelled = items.fact("calibration"), items.rows("SELECT count(label) FROM items")[0][0]
    if before is not None and (before["held_out"] or labelled < ENOUGH_MORE * before.get("labelled", 0)):
        return
    told = fitted_curve(*items.labels(), vectors, model, before)
    with items.writing():
        items.set_fact("calibration", told)


def fitted_curve(
    labelled: NDArray[np.int64],
    labels: NDArray[np.str_],
    vectors: Segments,
    model: Model,
    before: Mapping[str, Any] | None = None,
) -> Mapping[str, Any]:
    """What to write down: the curve, None where too little is known to fit it, and whether to held-out classes."""
    fitted = calibration.fit_held_out(model.held_out(), model.distance) if before is None else None
    held_out = fitted is not None
    if fitted is None:
        ids, names = calibration.some_of(labelled, labels)
        fitted = calibration.fit_own(vectors.take(ids), names, model.distance)
    curve = None if fitted is None else asdict(fitted)
    # Where there was no curve to be had it is tried again with the next label.
    return {"held_out": held_out, "curve": curve, "labelled": 0 if curve is None else len(labelled)}


def read_calibration(items: Items) -> Calibration | None:
    """The curve that :func:`calibrate` wrote down, if there is one, for as many kinds as there are by now.

    Without labels an index is taken to have as many images of a kind as the curve was fitted to.
    """
    told = items.fact("calibration")
    if told is None or told["curve"] is None:
        return None
    curve = told["curve"]
    label = LabelCurve(**curve["label"]) if curve.get("label") else None
    reliability = tuple(Bin(**each) for each in curve["reliability"])
    found = Calibration(**{**curve, "reliability": reliability, "label": label})
    sizes = [row[0] for row in items.rows("SELECT count(*) FROM items WHERE label IS NOT NULL GROUP BY label")]
    if len(sizes) > 1:
        return found.among(calibration.number_of_kinds(np.array(sizes)))
    if not found.images or not items.count():  # made before curves knew of kinds, or empty
        return found
    return found.among(found.kinds * items.count() / found.images)
