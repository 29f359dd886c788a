"""From a score to the probability that a hit is of the query's kind.

A cut-off on similarity means something else for every encoder. A logistic curve through what was seen of this one does
not: of labelled images each looks for its nearest among the others, and each of those is of its kind or not. The curve
rises with the score, so it never changes an order. How good it is is measured on classes that it was not fitted to.

Among more kinds a hit of the same score is less often right: there are more others that happen to be as near. By how
much is seen from halves and quarters of the kinds, and the curve is moved to the kinds that an index has.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nearkin.index.engine import Distance
from nearkin.index.queries import unit_rows
from nearkin.runs.model import HeldOut

NEIGHBOURS = (10, 100, 1000)
"""Hits of each labelled image that are looked at: those that a search shows, or more."""
VOTERS = 10
"""Neighbours that have a say in a label."""
FOLDS = 5
MOST_IMAGES = 2_000
_FEWEST = 20
_FEWEST_KINDS = 5
_BINS = 10
_PAIRS = 1 << 22


@dataclass(frozen=True)
class Bin:
    """Hits of nearly the same confidence: how many, its mean, and the share of them that were right."""

    hits: int
    confidence: float
    right: float


@dataclass(frozen=True)
class LabelCurve:
    """``confidence = 1 / (1 + exp(−(slope · lead + intercept)))`` of a label; see :func:`lead`."""

    slope: float
    intercept: float
    brier: float
    brier_of_share: float

    def confidence(self, lead: float) -> float:
        return float(_logistic(np.array(self.slope * lead + self.intercept)))


@dataclass(frozen=True)
class Calibration:
    """``confidence = 1 / (1 + exp(−(slope · score + intercept)))``, and how far it can be believed."""

    slope: float
    intercept: float
    source: str
    """What it was fitted on."""
    hits: int
    brier: float
    """Mean squared difference between confidence and truth, on classes that were not fitted to."""
    brier_of_share: float
    """The same, had every hit been given the share of hits that are right."""
    reliability: tuple[Bin, ...]
    label: LabelCurve | None = None
    """The same for the label that a query's neighbours agree on."""
    images: int = 0
    kinds: float = 1.0
    """Images that it was fitted to, and among how many kinds; see :func:`number_of_kinds`."""
    growth: float = 0.0
    """What is added to the intercept when there are e times as many kinds: a number below 0."""
    shift: float = 0.0
    """What has been added to it for the kinds of an index."""

    def confidence(self, score: float) -> float:
        """
        >>> Calibration(10.0, -5.0, "", 100, 0.1, 0.2, ()).confidence(0.5)
        0.5
        """
        return float(_logistic(np.array(self.slope * score + self.intercept + self.shift)))

    def among(self, kinds: float) -> Calibration:
        """The curve for a collection of so many kinds.

        >>> curve = Calibration(10.0, -5.0, "", 100, 0.1, 0.2, (), kinds=50, growth=-0.9)
        >>> round(curve.among(500).confidence(0.5), 3)
        0.112
        """
        return replace(self, shift=self.growth * math.log(kinds / self.kinds))


def fit_held_out(held_out: HeldOut | None, distance: Distance) -> Calibration | None:
    """The curve from images of classes that the encoder was not trained on, as kinds of a search are."""
    if held_out is None:
        return None
    images, kinds = len(held_out.labels), len(np.unique(held_out.labels))
    return fit(held_out.vectors, held_out.labels, distance, f"{images:,} images of {kinds:,} kinds not trained on")


def fit_own(vectors: NDArray[np.float32], names: NDArray[np.str_], distance: Distance) -> Calibration | None:
    """The curve from an index's own labelled images, which training may have seen."""
    labels = np.unique(names, return_inverse=True)[1].reshape(-1).astype(np.int64)
    return fit(vectors, labels, distance, f"{len(labels):,} labelled images of the index, each against the others")


def some_of(ids: NDArray[np.int64], names: NDArray[np.str_]) -> tuple[NDArray[np.int64], NDArray[np.str_]]:
    """At most so many labelled items as a curve needs, drawn by chance."""
    some = np.sort(np.random.default_rng(0).permutation(len(ids))[:MOST_IMAGES])
    return ids[some], names[some]


def fit(vectors: NDArray[np.float32], labels: NDArray[np.int64], distance: Distance, source: str) -> Calibration | None:
    """Fit the curve to labelled vectors ``[N, dim]``; None where they are too few to tell right from wrong."""
    if (looked := _hits(vectors, labels, distance)) is None:
        return None
    scores, right = looked
    # A fold is a set of whole classes, since it is new kinds that a search is asked for.
    classes = np.unique(labels)
    fold_of = np.random.default_rng(0).permutation(len(classes)) % min(FOLDS, len(classes))
    folds = fold_of[np.searchsorted(classes, labels)]
    seen = np.empty_like(scores)
    for fold in np.unique(folds):
        held, rest = folds == fold, folds != fold
        seen[held] = _logistic(_evaluate(_fitted(scores[rest].ravel(), right[rest].ravel()), scores[held]))
    curve = _fitted(scores.ravel(), right.ravel())
    measured = _measured(curve, seen, right, source, _fit_label(vectors, labels, folds, distance, curve))
    growth = _growth(vectors, labels, distance)
    return replace(measured, images=len(labels), kinds=kinds_of(labels), growth=growth)


def number_of_kinds(sizes: NDArray[np.int64]) -> float:
    """Of kinds with so many images: one over the share of pairs of images that are of a kind, at most the images.

    >>> number_of_kinds(np.array([10, 10, 10]))  # doctest: +ELLIPSIS
    3.22...
    >>> number_of_kinds(np.array([1, 1, 1]))
    3.0
    """
    images = float(sizes.sum())
    return min(images, images * (images - 1) / max(float((sizes * (sizes - 1.0)).sum()), 1e-9))


def kinds_of(labels: NDArray[np.int64]) -> float:
    return number_of_kinds(np.unique(labels, return_counts=True)[1])


def _growth(vectors: NDArray[np.float32], labels: NDArray[np.int64], distance: Distance) -> float:
    """The coefficient of the logarithm of the number of kinds beside the score, from all, halves and quarters of them.

    Below −1 it cannot be where kinds are alike (as many times more wrong hits as kinds), so it ends there.
    """
    classes = np.random.default_rng(0).permutation(np.unique(labels))
    rows = []
    for parts in (1, 2, 4):
        for part in range(parts):
            mine = np.isin(labels, classes[part::parts])
            if len(classes) >= _FEWEST_KINDS * parts and (found := _hits(vectors[mine], labels[mine], distance)):
                scores, right = (each.ravel() for each in found)
                design = np.stack([scores, np.full_like(scores, math.log(kinds_of(labels[mine])))], axis=1)
                rows.append((parts, design, right, np.full(len(scores), 1 / len(scores))))
    if len({parts for parts, *_ in rows}) < 2:
        return -1.0
    design, right, weights = (np.concatenate([row[i] for row in rows]) for i in (1, 2, 3))
    slopes, _ = _logistic_regression(design, right, weights)
    return float(np.clip(slopes[1], -1.0, 0.0))


def fit_on_others(
    fitted: HeldOut, scored: HeldOut, distance: Distance, source: str, *, moves: bool = True
) -> Calibration | None:
    """The curve from ``fitted``, moved to as many kinds as ``scored`` has, and how far it can be believed of those."""
    known, asked = (_hits(each.vectors, each.labels, distance) for each in (fitted, scored))
    if known is None or asked is None:
        return None
    curve = _fitted(known[0].ravel(), known[1].ravel())
    growth = _growth(fitted.vectors, fitted.labels, distance) if moves else 0.0
    kinds = kinds_of(fitted.labels)
    shift = growth * math.log(kinds_of(scored.labels) / kinds)
    measured = _measured(curve, _logistic(_evaluate(curve, asked[0]) + shift), asked[1], source)
    return replace(measured, images=len(fitted.labels), kinds=kinds, growth=growth, shift=shift)


def _hits(
    vectors: NDArray[np.float32], labels: NDArray[np.int64], distance: Distance
) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """Scores ``[N, k]`` of the nearest others of each vector, and 1 or 0 for each: of its class or not.

    None where there is nothing to tell right from wrong by.
    """
    if len(np.unique(labels)) < 2 or len(labels) < 3:
        return None
    for k in NEIGHBOURS:  # further ones only where all near ones are right, which says nothing of those that are not
        found, scores = _nearest(vectors, min(k, len(labels) - 1), distance)
        right = (labels[found] == labels[:, None]).astype(np.float64)
        if right.size >= _FEWEST and 0 < right.mean() < 1:
            return scores, right
    return None


def _measured(
    curve: tuple[float, float],
    seen: NDArray[np.float64],
    right: NDArray[np.float64],
    source: str,
    label: LabelCurve | None = None,
) -> Calibration:
    """The curve with what came of the confidences ``seen`` of hits that it was not fitted to."""
    return Calibration(
        slope=curve[0],
        intercept=curve[1],
        label=label,
        source=source,
        hits=right.size,
        brier=float(((seen - right) ** 2).mean()),
        brier_of_share=float(right.mean() * (1 - right.mean())),
        reliability=_reliability(seen.ravel(), right.ravel()),
    )


def lead(votes: Mapping[Any, float]) -> tuple[Any, float]:
    """The label with most votes, and by how much it is ahead of the next.

    >>> lead({"tit": 2.5, "wren": 1.0})
    ('tit', 1.5)
    """
    (first, most), (_, next) = [*sorted(votes.items(), key=lambda each: -each[1]), (None, 0.0)][:2]
    return first, most - next


def _fit_label(
    vectors: NDArray[np.float32],
    labels: NDArray[np.int64],
    folds: NDArray[np.int64],
    distance: Distance,
    curve: tuple[float, float],
) -> LabelCurve | None:
    """The curve of how often a label is right by its lead, each vector among the others.

    Every fourth vector votes a second time without its own kind, as one does that none of the labels suits.
    """
    deep = min(len(labels) - 1, VOTERS + int(np.bincount(labels - labels.min()).max()))
    found, similarities = _nearest(vectors, deep, distance)
    sure = _logistic(_evaluate(curve, similarities))
    leads, right, of_fold = [], [], []
    for i, own in enumerate(labels.tolist()):
        for known in (True, False) if i % 4 == 0 else (True,):
            voters = [j for j in range(deep) if known or labels[found[i, j]] != own][:VOTERS]
            votes: dict[int, float] = {}
            for j in voters:
                votes[int(labels[found[i, j]])] = votes.get(int(labels[found[i, j]]), 0.0) + float(sure[i, j])
            if votes:
                label, ahead = lead(votes)
                leads.append(ahead)
                right.append(float(label == own))
                of_fold.append(int(folds[i]))
    x, y, parts = np.array(leads), np.array(right), np.array(of_fold)
    if len(y) < _FEWEST or not 0 < y.mean() < 1:
        return None
    seen = np.empty_like(x)
    for fold in np.unique(parts):
        held, rest = parts == fold, parts != fold
        seen[held] = _logistic(_evaluate(_fitted(x[rest], y[rest]), x[held]))
    return LabelCurve(*_fitted(x, y), float(((seen - y) ** 2).mean()), float(y.mean() * (1 - y.mean())))


def _nearest(vectors: NDArray[np.float32], k: int, distance: Distance) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Of each row the ``k`` nearest others, nearest first, and their scores as a search gives them."""
    rows = vectors.astype(np.float64)
    if distance == "cosine":
        rows = unit_rows(rows)
    squares = np.square(rows).sum(axis=1)
    found, scores = np.empty((len(rows), k), dtype=np.int64), np.empty((len(rows), k))
    step = max(1, _PAIRS // len(rows))
    for start in range(0, len(rows), step):
        part = np.arange(start, min(start + step, len(rows)))
        near = rows[part] @ rows.T
        if distance == "euclidean":
            near = -np.sqrt(np.maximum(squares[part, None] + squares - 2 * near, 0))
        near[part - start, part] = -np.inf
        some = np.sort(np.argpartition(-near, k - 1, axis=1)[:, :k], axis=1)
        order = np.argsort(-np.take_along_axis(near, some, axis=1), axis=1, kind="stable")
        found[part] = np.take_along_axis(some, order, axis=1)
        scores[part] = np.take_along_axis(near, found[part], axis=1)
    return found, scores


def _fitted(scores: NDArray[np.float64], right: NDArray[np.float64]) -> tuple[float, float]:
    """Slope, never falling, and intercept of the likeliest logistic curve, by Newton's method (Platt 1999).

    His targets, a little away from 0 and 1, keep the curve finite where the two kinds of hits do not overlap.
    """
    positive = right.sum()
    target = np.where(right > 0, (positive + 1) / (positive + 2), 1 / (len(right) - positive + 2))
    (slope,), intercept = _logistic_regression(scores[:, None], target, np.full(len(target), 1 / len(target)))
    if slope < 0:
        return 0.0, math.log(target.mean() / (1 - target.mean()))
    return float(slope), intercept


def _logistic_regression(
    features: NDArray[np.float64], target: NDArray[np.float64], weights: NDArray[np.float64]
) -> tuple[NDArray[np.float64], float]:
    """Slopes and intercept of the likeliest logistic model of ``features`` ``[N, F]``, by Newton's method."""
    weights = weights / weights.sum()
    centre = weights @ features
    spread = np.sqrt(weights @ np.square(features - centre))
    spread[spread <= 1e-9 * np.abs(centre)] = 1.0  # of a feature that is the same everywhere only rounding is left
    design = np.concatenate([(features - centre) / spread, np.ones((len(features), 1))], axis=1)

    def loss(model: NDArray[np.float64]) -> float:
        margin = design @ model
        return float(weights @ (np.logaddexp(0, margin) - target * margin))

    share = float(np.clip(weights @ target, 1e-9, 1 - 1e-9))
    model = np.append(np.zeros(features.shape[1]), math.log(share / (1 - share)))
    for _ in range(100):
        probability = _logistic(design @ model)
        gradient = design.T @ (weights * (probability - target))
        curvature = (design.T * (weights * probability * (1 - probability))) @ design + 1e-9 * np.eye(len(model))
        step = np.linalg.solve(curvature, gradient)
        size, before = 1.0, loss(model)
        while loss(model - size * step) > before and size > 1e-6:
            size /= 2
        model = model - size * step
        if np.abs(step).max() < 1e-9:
            break
    slopes = model[:-1] / spread
    return slopes, float(model[-1] - slopes @ centre)


def _evaluate(curve: tuple[float, float], scores: NDArray[np.float64]) -> NDArray[np.float64]:
    return curve[0] * scores + curve[1]


def _logistic(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.exp(-np.logaddexp(0.0, -x))


def _reliability(confidence: NDArray[np.float64], right: NDArray[np.float64]) -> tuple[Bin, ...]:
    bins = np.minimum((confidence * _BINS).astype(np.int64), _BINS - 1)
    counts = np.bincount(bins, minlength=_BINS)
    means, shares = (np.bincount(bins, values, minlength=_BINS) for values in (confidence, right))
    return tuple(Bin(int(n), float(means[i] / n), float(shares[i] / n)) for i, n in enumerate(counts.tolist()) if n)
