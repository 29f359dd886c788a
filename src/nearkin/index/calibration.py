"""From a score to the probability that a hit is of the query's class.

A threshold on similarity means something else for every encoder. A logistic curve is therefore fitted to the encoder's
own hits: each labelled image looks for its nearest among the others, and each of those is of its class or not. The
curve rises with the score, so it never changes an order. It is measured on classes that it was not fitted to.

Among more classes a hit of the same score is less often right, as more images of other classes happen to be as near.
How much less is learned from halves and quarters of the classes, and the curve is shifted to the classes of an index.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nearkin.evaluation.neighbours import nearest
from nearkin.index.engine import Distance
from nearkin.index.items import Items
from nearkin.index.segments import Segments
from nearkin.runs.model import HeldOut, Model

NEIGHBOURS = (10, 100, 1000)
"""Hits of each labelled image to fit to: the first number that has right and wrong ones."""
VOTERS = 10
"""Neighbours that vote for a label."""
FOLDS = 5
MOST_IMAGES = 2_000
REFIT_GROWTH = 1.05
"""By how much the labelled images must have grown for the curve to be fitted to them again."""
_FEWEST_HITS = 20
_FEWEST_CLASSES = 5
_BINS = 10

Curve = tuple[float, float]
"""Slope and intercept of a logistic curve."""


@dataclass(frozen=True)
class Bin:
    """Hits of similar confidence: their number, mean confidence, and the share that was right."""

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
    """``confidence = 1 / (1 + exp(−(slope · score + intercept + shift)))``, and how reliable it is."""

    slope: float
    intercept: float
    source: str
    """The images that it was fitted to, in words."""
    hits: int
    brier: float
    """Mean squared difference between confidence and truth, on classes that it was not fitted to."""
    brier_of_share: float
    """The same for a constant confidence: the share of hits that are right."""
    reliability: tuple[Bin, ...]
    label: LabelCurve | None = None
    """The curve for the label that a query's neighbours agree on."""
    images: int = 0
    classes: float = 1.0
    """Images that it was fitted to, and among how many classes; see :func:`effective_classes`."""
    growth: float = 0.0
    """The change of the intercept for e times as many classes: at most 0."""
    shift: float = 0.0
    """The change of the intercept for the classes of an index."""

    def confidence(self, score: float) -> float:
        """
        >>> Calibration(10.0, -5.0, "", 100, 0.1, 0.2, ()).confidence(0.5)
        0.5
        """
        return float(_logistic(np.array(self.slope * score + self.intercept + self.shift)))

    def among(self, classes: float) -> Calibration:
        """The curve for a collection of so many classes.

        >>> curve = Calibration(10.0, -5.0, "", 100, 0.1, 0.2, (), classes=50, growth=-0.9)
        >>> round(curve.among(500).confidence(0.5), 3)
        0.112
        """
        return replace(self, shift=self.growth * math.log(classes / self.classes))


def calibrate(items: Items, vectors: Segments, model: Model) -> None:
    """Fit an index's curve to classes held out from training, or without any to its own labels, and store it.

    A curve from held-out classes stays. One from the index's own labels is fitted again when they have grown enough, as
    a few more labels make no difference and fitting takes longer than adding an image.
    """
    before, labelled = items.fact("calibration"), items.rows("SELECT count(label) FROM items")[0][0]
    if before is not None and (before["held_out"] or labelled < REFIT_GROWTH * before["labelled"]):
        return
    facts = calibration_facts(*items.labels(), vectors, model, before)
    with items.writing():
        items.set_fact("calibration", facts)


def calibration_facts(
    labelled: NDArray[np.int64],
    labels: NDArray[np.str_],
    vectors: Segments,
    model: Model,
    before: Mapping[str, Any] | None = None,
) -> Mapping[str, Any]:
    """What an index stores: the curve or None, whether it is of held-out classes, and the labels it was fitted to."""
    held_out = model.held_out() if before is None else None
    curve = None
    if held_out is not None:
        images, classes = len(held_out.labels), len(np.unique(held_out.labels))
        source = f"{images:,} images of {classes:,} classes not trained on"
        curve = fit(held_out.vectors, held_out.labels, model.distance, source)
    is_held_out = curve is not None
    if curve is None:
        chosen = np.sort(np.random.default_rng(0).permutation(len(labelled))[:MOST_IMAGES])
        numbers = np.unique(labels[chosen], return_inverse=True)[1].reshape(-1).astype(np.int64)
        source = f"{len(numbers):,} labelled images of the index, each against the others"
        curve = fit(vectors.take(labelled[chosen]), numbers, model.distance, source)
    # Without a curve, the next label is reason to try again.
    fitted = {"curve": None, "labelled": 0} if curve is None else {"curve": asdict(curve), "labelled": len(labelled)}
    return {"held_out": is_held_out, **fitted}


def read_calibration(items: Items) -> Calibration | None:
    """The stored curve, if there is one, shifted to the present number of classes.

    An index without labels is taken to have as many images of a class as the curve was fitted to.
    """
    facts = items.fact("calibration")
    if facts is None or facts["curve"] is None:
        return None
    values = facts["curve"]
    label = LabelCurve(**values["label"]) if values["label"] else None
    curve = Calibration(**{**values, "reliability": tuple(Bin(**bin) for bin in values["reliability"]), "label": label})
    sizes = [count for _, count in items.label_counts()]
    if len(sizes) > 1:
        return curve.among(effective_classes(np.array(sizes)))
    return curve.among(curve.classes * items.count() / curve.images) if items.count() else curve


def fit(vectors: NDArray[np.float32], labels: NDArray[np.int64], distance: Distance, source: str) -> Calibration | None:
    """Fit the curve to labelled vectors ``[N, dim]``; None where they are too few to tell right from wrong."""
    if (found := _hits(vectors, labels, distance)) is None:
        return None
    scores, right = found
    # A fold is a set of whole classes, since searches are for classes that were not fitted to.
    classes = np.unique(labels)
    fold_of_class = np.random.default_rng(0).permutation(len(classes)) % min(FOLDS, len(classes))
    folds = fold_of_class[np.searchsorted(classes, labels)]
    curve = _platt(scores.ravel(), right.ravel())
    label = _fit_label(vectors, labels, folds, distance, curve)
    measured = _measured(curve, _cross_fitted(scores, right, folds), right, source, label)
    growth = _growth(vectors, labels, distance)
    return replace(measured, images=len(labels), classes=_classes_of(labels), growth=growth)


def fit_on_others(
    fitted: HeldOut, scored: HeldOut, distance: Distance, source: str, *, moves: bool = True
) -> Calibration | None:
    """The curve from ``fitted``, shifted to the number of classes of ``scored`` and measured on these."""
    known, asked = (_hits(part.vectors, part.labels, distance) for part in (fitted, scored))
    if known is None or asked is None:
        return None
    curve = _platt(known[0].ravel(), known[1].ravel())
    growth = _growth(fitted.vectors, fitted.labels, distance) if moves else 0.0
    classes = _classes_of(fitted.labels)
    shift = growth * math.log(_classes_of(scored.labels) / classes)
    measured = _measured(curve, _logistic(curve[0] * asked[0] + curve[1] + shift), asked[1], source)
    return replace(measured, images=len(fitted.labels), classes=classes, growth=growth, shift=shift)


def effective_classes(sizes: NDArray[np.int64]) -> float:
    """One over the share of pairs of images that are of a class, given the sizes of classes; at most the images.

    >>> effective_classes(np.array([10, 10, 10]))  # doctest: +ELLIPSIS
    3.22...
    >>> effective_classes(np.array([1, 1, 1]))
    3.0
    """
    images = float(sizes.sum())
    return min(images, images * (images - 1) / max(float((sizes * (sizes - 1.0)).sum()), 1e-9))


def _classes_of(labels: NDArray[np.int64]) -> float:
    return effective_classes(np.unique(labels, return_counts=True)[1])


def lead(votes: Mapping[Any, float]) -> tuple[Any, float]:
    """The label with most votes, and by how much it leads over the next.

    >>> lead({"tit": 2.5, "wren": 1.0})
    ('tit', 1.5)
    """
    (first, most), (_, second) = [*sorted(votes.items(), key=lambda vote: -vote[1]), (None, 0.0)][:2]
    return first, most - second


def _growth(vectors: NDArray[np.float32], labels: NDArray[np.int64], distance: Distance) -> float:
    """The coefficient of the logarithm of the number of classes, from all, halves and quarters of them.

    Where classes are alike it is at least −1: as many times more wrong hits as classes. So it is clipped there.
    """
    classes = np.random.default_rng(0).permutation(np.unique(labels))
    samples = []
    for parts in (1, 2, 4):
        for part in range(parts):
            inside = np.isin(labels, classes[part::parts])
            if len(classes) >= _FEWEST_CLASSES * parts and (hits := _hits(vectors[inside], labels[inside], distance)):
                scores, right = (values.ravel() for values in hits)
                features = np.stack([scores, np.full_like(scores, math.log(_classes_of(labels[inside])))], axis=1)
                samples.append((parts, features, right, np.full(len(scores), 1 / len(scores))))
    if len({parts for parts, *_ in samples}) < 2:
        return -1.0
    features, right, weights = (np.concatenate([sample[i] for sample in samples]) for i in (1, 2, 3))
    return float(np.clip(_logistic_regression(features, right, weights)[0][1], -1.0, 0.0))


def _hits(
    vectors: NDArray[np.float32], labels: NDArray[np.int64], distance: Distance
) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """Scores ``[N, k]`` of the nearest others of each vector, and 1 or 0 for each: of its class or not.

    None where right and wrong hits cannot be told apart.
    """
    if len(np.unique(labels)) < 2 or len(labels) < 3:
        return None
    for k in NEIGHBOURS:
        neighbours, scores = nearest(vectors, k=min(k, len(labels) - 1), distance=distance)
        right = (labels[neighbours] == labels[:, None]).astype(np.float64)
        if right.size >= _FEWEST_HITS and 0 < right.mean() < 1:
            return scores, right
    return None


def _measured(
    curve: Curve,
    confidence: NDArray[np.float64],
    right: NDArray[np.float64],
    source: str,
    label: LabelCurve | None = None,
) -> Calibration:
    """The curve, measured by the ``confidence`` of hits that it was not fitted to."""
    bins = np.minimum((confidence.ravel() * _BINS).astype(np.int64), _BINS - 1)
    counts = np.bincount(bins, minlength=_BINS)
    means, shares = (np.bincount(bins, values.ravel(), minlength=_BINS) for values in (confidence, right))
    return Calibration(
        slope=curve[0],
        intercept=curve[1],
        label=label,
        source=source,
        hits=right.size,
        brier=float(((confidence - right) ** 2).mean()),
        brier_of_share=float(right.mean() * (1 - right.mean())),
        reliability=tuple(
            Bin(n, float(means[i] / n), float(shares[i] / n)) for i, n in enumerate(counts.tolist()) if n
        ),
    )


def _fit_label(
    vectors: NDArray[np.float32],
    labels: NDArray[np.int64],
    folds: NDArray[np.int64],
    distance: Distance,
    curve: Curve,
) -> LabelCurve | None:
    """The curve of how often a label is right by its lead, each vector among the others.

    Every fourth vector is classified a second time without its own class, as an image that no label suits.
    """
    depth = min(len(labels) - 1, VOTERS + int(np.bincount(labels - labels.min()).max()))
    neighbours, scores = nearest(vectors, k=depth, distance=distance)
    confidence = _logistic(curve[0] * scores + curve[1])
    leads, right, fold_of_vote = [], [], []
    for i, true in enumerate(labels.tolist()):
        for known in (True, False) if i % 4 == 0 else (True,):
            voters = [j for j in range(depth) if known or labels[neighbours[i, j]] != true][:VOTERS]
            votes: dict[int, float] = {}
            for j in voters:
                label = int(labels[neighbours[i, j]])
                votes[label] = votes.get(label, 0.0) + float(confidence[i, j])
            if votes:
                label, margin = lead(votes)
                leads.append(margin)
                right.append(float(label == true))
                fold_of_vote.append(int(folds[i]))
    x, y = np.array(leads), np.array(right)
    if len(y) < _FEWEST_HITS or not 0 < y.mean() < 1:
        return None
    unseen = _cross_fitted(x, y, np.array(fold_of_vote))
    return LabelCurve(*_platt(x, y), float(((unseen - y) ** 2).mean()), float(y.mean() * (1 - y.mean())))


def _cross_fitted(
    scores: NDArray[np.float64], right: NDArray[np.float64], folds: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Confidences of each fold by the curve that was fitted to the other folds."""
    confidence = np.empty_like(scores)
    for fold in np.unique(folds):
        inside = folds == fold
        slope, intercept = _platt(scores[~inside].ravel(), right[~inside].ravel())
        confidence[inside] = _logistic(slope * scores[inside] + intercept)
    return confidence


def _platt(scores: NDArray[np.float64], right: NDArray[np.float64]) -> Curve:
    """The likeliest logistic curve that does not fall (Platt 1999).

    His targets, slightly inside 0 and 1, keep the curve finite where right and wrong hits do not overlap.
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
    """Slopes and intercept of the likeliest logistic model of ``features`` ``[N, F]`` for targets from 0 to 1."""
    from sklearn.linear_model import LogisticRegression

    # A sample with the target t is one of class 1 with the weight t and one of class 0 with the weight 1 − t.
    both = np.concatenate([weights * target, weights * (1 - target)]) / weights.sum()
    classes = np.repeat([1, 0], len(target))
    spread = features.std(axis=0)
    spread[spread <= 1e-9 * np.abs(features.mean(axis=0))] = 1.0  # a constant feature varies by rounding only
    centre = features.mean(axis=0)
    scaled = np.tile((features - centre) / spread, (2, 1))
    model = LogisticRegression(C=1e9, solver="newton-cholesky", tol=1e-9).fit(scaled, classes, sample_weight=both)
    slopes = model.coef_[0] / spread
    return slopes, float(model.intercept_[0] - slopes @ centre)


def _logistic(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.exp(-np.logaddexp(0.0, -x))
