"""The label of a query by its nearest hits, and the confidence of hits and labels.

Scores of different encoders and collections are not comparable. So confidences are learned from labelled images of the
collection that the encoder was *not* trained on, since trained images lie nearer to their class. Each image is searched
among the others twice: with its own class, and without it, where every answer is wrong.

The confidence of a hit depends on its score and on how far the query's hits agree on a label. It rises with the score,
so it never changes the order of hits. The confidence of a label depends on the query's distance from the mean of the
class, compared with the images of that class, and on the label's share of the vote.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

from nearkin.evaluation.neighbours import Distance, Floats, Ints, nearest, without_itself

VOTERS = 50
"""Nearest hits that vote for a label."""
VOTE_SCALE = 0.05
"""A hit whose score is lower than the highest by this has 1/e of the vote of the highest."""
MOST_MEMBERS = 500
"""Images of a class from which its mean is computed."""
DEFAULT_THRESHOLD = 0.5
"""Below this confidence a label is "none of these"."""

HITS = 10
"""Nearest hits of each image that the confidence of hits is learned from."""
UNKNOWN_SHARE = 1 / 3
"""The assumed share of queries of a class that the collection lacks."""
FEWEST_IMAGES, FEWEST_CLASSES = 15, 3
"""With fewer, no confidence is learned."""
MOST_IMAGES = 2_000
MOST_PASSED_OVER = 4_096
"""At most so many hits of an image's own class are skipped to find those of others."""
NO_CLASS = -1
FOLDS, BINS = 5, 10

Search = Callable[[Ints, int], tuple[Ints, Floats]]
"""Given some rows and k: the k nearest other rows of each, nearest first ``[Q, k]``, and their scores ``[Q, k]``."""


class ClassProfile(NamedTuple):
    """The mean of a class ``[D]``, and the mean score of its images with the mean of the others; NaN of one image."""

    mean: Floats
    spread: float

    @classmethod
    def of(cls, members: NDArray[np.floating[Any]], distance: Distance) -> ClassProfile:
        """
        >>> round(ClassProfile.of(np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]), "cosine").spread, 3)
        0.471
        """
        rows: Floats = members.astype(np.float64)
        total, count = rows.sum(axis=0), len(rows)
        spread = _scores(rows, (total - rows) / (count - 1), distance).mean() if count > 1 else np.nan
        return cls(total / count, float(spread))


class Vote(NamedTuple):
    """A label, with what its confidence depends on."""

    label: Any
    closeness: float
    """The query's score with the mean of the class, less that of the images of the class."""
    share: float
    """The label's share of the votes."""


def votes_of(numbers: Ints, scores: Floats) -> Floats:
    """The share of the vote of each label 0, 1, … of hits ``[K]``, which vote with ``exp((score − highest) / 0.05)``.

    >>> votes_of(np.array([0, 1, 0]), np.array([0.9, 0.88, 0.85])).round(3)
    array([0.671, 0.329])
    """
    votes = np.bincount(numbers, np.exp((scores - scores.max()) / VOTE_SCALE))
    return np.asarray(votes / votes.sum())


def vote(
    query: Floats,
    labels: NDArray[Any],
    scores: Floats,
    profiles: Mapping[Any, ClassProfile],
    distance: Distance,
    typical_spread: float,
) -> Vote:
    """The label of a query ``[D]`` by its hits, nearest first ``[K]``: the nearest class.

    The score of a class is the mean of the scores of its nearest hit and of its mean vector. ``profiles`` are of the
    hits' classes, ``typical_spread`` is for classes with one image.
    """
    names, first, numbers = np.unique(labels, return_index=True, return_inverse=True)
    means = np.stack([profiles[name].mean for name in names.tolist()])
    to_mean = _scores(query[None], means, distance)
    winner = int((scores[first] + to_mean).argmax())
    label = names[winner].item()
    spread = profiles[label].spread
    closeness = to_mean[winner] - (typical_spread if np.isnan(spread) else spread)
    return Vote(label, float(closeness), float(votes_of(numbers, scores)[winner]))


class Bin(NamedTuple):
    """Answers of similar confidence: their number, their mean confidence and the share of right ones."""

    answers: int
    confidence: float
    right: float


@dataclass(frozen=True)
class Curve:
    """``confidence = 1 / (1 + exp(−(slopes · features + intercept)))``, and its reliability on other classes."""

    slopes: tuple[float, ...]
    intercept: float
    calibration_error: float
    """Mean distance between confidence and the share that is right, over bins of equally many answers."""
    brier: float
    """Mean squared difference between confidence and truth."""
    brier_of_constant: float
    """The same for a constant confidence: the share of right answers."""
    bins: tuple[Bin, ...]

    def __call__(self, features: Floats) -> Floats:
        """Confidences ``[…]`` of features ``[…, F]``."""
        return np.asarray(special.expit(features @ np.array(self.slopes) + self.intercept))


@dataclass(frozen=True)
class Confidence:
    """The confidence curves of a collection, and their quality."""

    hit: Curve
    label: Curve
    typical_spread: float
    """Mean score of an image with the mean of the others of its class, over all classes."""
    images: int
    """The images that it was learned from, all new to the encoder."""
    classes: int
    accuracy: float
    """How often the label of such an image is right, at any confidence."""
    refused: float
    """How often such an image gets no label, because the confidence is below 0.5."""
    unknown_refused: float
    """The same when the image's own class is removed."""

    def of_hits(self, scores: Floats, labels: NDArray[Any], label_scores: Floats) -> Floats:
        """The probability that hits ``[H]`` of one query are of its class.

        ``labels`` and ``label_scores`` are those of the query's nearest labelled hits, at most 50.
        """
        return self.hit(_hit_features(scores, np.unique(labels, return_inverse=True)[1], label_scores))

    def of_label(self, vote: Vote) -> float:
        """The probability that a label is right."""
        return float(self.label(np.array([vote.closeness, vote.share])))


def learn_confidence(
    labels: Ints, unseen: Ints, take: Callable[[Ints], NDArray[Any]], search: Search, distance: Distance
) -> Confidence | str:
    """Learn both curves of a collection; the reason where it has too few images or classes.

    Args:
        labels: of each row of the collection ``[N]``, 0, 1, ….
        unseen: rows of images that the encoder was not trained on.
        take: gives the vectors of rows.
        search: finds the nearest other rows of some rows.
        distance: how vectors are compared.
    """
    sizes = np.bincount(labels)
    unseen = unseen[sizes[labels[unseen]] > 1]
    if (present := np.count_nonzero(sizes)) < FEWEST_CLASSES:
        return f"it takes {FEWEST_CLASSES} classes, got {present}"
    if len(unseen) < FEWEST_IMAGES:
        return f"it takes {FEWEST_IMAGES} images new to the encoder, with another of their class, got {len(unseen)}"
    if len(unseen) > MOST_IMAGES:
        unseen = np.random.default_rng(0).choice(unseen, MOST_IMAGES, replace=False)
    classes, class_rank = np.unique(labels[unseen], return_inverse=True)
    # A class counts by its images in the collection, however many of them are new to the encoder.
    weight = sizes[classes][class_rank] / np.bincount(class_rank)[class_rank]
    weight /= weight.sum()
    # A fold is a set of whole classes, so that a curve is measured on classes that it was not fitted to.
    fold = (np.random.default_rng(0).permutation(len(classes)) % FOLDS)[class_rank]
    depth = VOTERS + int(np.minimum(sizes[classes], MOST_PASSED_OVER).max())
    rows, scores = search(unseen, min(len(labels) - 1, depth))
    members = _members(labels, np.unique(np.append(labels[rows], labels[unseen])))
    profiles = {label: ClassProfile.of(take(voters), distance) for label, voters in members.items()}
    typical_spread = float(np.nanmean([profile.spread for profile in profiles.values()]))

    hits, votes, truths, weights, folds = [], [], [], [], []
    for i, (row, query) in enumerate(zip(unseen, take(unseen).astype(np.float64), strict=True)):
        true, neighbour_labels = int(labels[row]), labels[rows[i]]
        if (neighbour_labels == true).all():
            continue
        others = members[true][members[true] != row]
        others_alone = {**profiles, true: ClassProfile.of(take(others), distance)}
        for is_known, share in ((True, 1 - UNKNOWN_SHARE), (False, UNKNOWN_SHARE)):
            voters = np.flatnonzero(is_known | (neighbour_labels != true))[:VOTERS]
            near = neighbour_labels[voters], scores[i, voters]
            hits.append(near)
            votes.append(vote(query, *near, others_alone, distance, typical_spread))
            truths.append(true if is_known else NO_CLASS)
            weights.append(share * weight[i])
            folds.append(fold[i])
    if len(votes) < 2 * FEWEST_IMAGES:
        return f"it takes {FEWEST_IMAGES} images with one of another class among the nearest, got {len(votes) // 2}"
    if len(set(folds)) < 2:
        return "it takes 2 classes with images new to the encoder, got 1"
    truth, amount, part = np.array(truths), np.array(weights), np.array(folds)
    sizes = np.array([len(near[:HITS]) for near, _ in hits])
    hit, _ = _fit(
        np.concatenate([_hit_features(scores[:HITS], labels, scores) for labels, scores in hits]),
        np.concatenate([near[:HITS] for near, _ in hits]) == np.repeat(truth, sizes),
        np.repeat(amount / sizes, sizes),
        np.repeat(part, sizes),
    )
    right = np.array([one.label for one in votes]) == truth
    label, confidence = _fit(np.array([(one.closeness, one.share) for one in votes]), right, amount, part)
    known, refused = truth != NO_CLASS, confidence < DEFAULT_THRESHOLD
    return Confidence(
        hit,
        label,
        typical_spread,
        images=len(votes) // 2,
        classes=len(np.unique(truth[truth != NO_CLASS])),
        accuracy=float(np.average(right[known], weights=amount[known])),
        refused=float(np.average(refused[known], weights=amount[known])),
        unknown_refused=float(np.average(refused[~known], weights=amount[~known])),
    )


def confidence_among(
    vectors: NDArray[np.floating[Any]], labels: Ints, unseen: Ints, distance: Distance
) -> Confidence | str:
    """:func:`learn_confidence` of vectors ``[N, D]`` in memory.

    >>> rng = np.random.default_rng(0)
    >>> labels = np.repeat(np.arange(8), 12)
    >>> vectors = rng.normal(size=(8, 16))[labels] + 0.5 * rng.normal(size=(96, 16))
    >>> confidence = confidence_among(vectors, labels, np.arange(96), "cosine")
    >>> confidence.images, confidence.accuracy > 0.9
    (96, True)
    """
    labels = np.unique(labels, return_inverse=True)[1]

    def search(rows: Ints, k: int) -> tuple[Ints, Floats]:
        indices, scores = nearest(vectors[rows], vectors, k=k + 1, distance=distance)
        return without_itself(indices, scores, rows)

    return learn_confidence(labels, unseen, lambda rows: vectors[rows], search, distance)


def _hit_features(scores: Floats, labels: Ints, label_scores: Floats) -> Floats:
    """The scores of hits ``[H]``, and the largest share of the vote among the query's labelled hits: ``[H, 2]``."""
    return np.stack([scores, np.full_like(scores, votes_of(labels, label_scores).max())], axis=-1)


def _members(labels: Ints, wanted: Ints) -> dict[int, Ints]:
    """The rows of each wanted class, at most :data:`MOST_MEMBERS` of them."""
    order = np.argsort(labels, kind="stable")
    starts, ends = (np.searchsorted(labels[order], wanted, side=side) for side in ("left", "right"))
    return {
        label: order[start : min(end, start + MOST_MEMBERS)]
        for label, start, end in zip(wanted.tolist(), starts.tolist(), ends.tolist(), strict=True)
    }


def _scores(a: Floats, b: Floats, distance: Distance) -> Floats:
    """Scores of rows ``[N, D]`` with rows ``[N, D]``, or of one with all: the cosine, or minus the distance."""
    if distance == "euclidean":
        return np.asarray(-np.linalg.norm(a - b, axis=1))
    lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    return np.asarray((a * b).sum(axis=1) / np.maximum(lengths, 1e-12))


def _fit(features: Floats, right: NDArray[np.bool_], weights: Floats, folds: Ints) -> tuple[Curve, Floats]:
    """The curve of features ``[N, F]``, and the confidences ``[N]`` by cross-validation over folds."""
    slopes, intercept = _logistic_regression(features, right, weights)
    confidence = np.empty(len(right))
    for fold in np.unique(folds):
        inside = folds == fold
        fitted = _logistic_regression(features[~inside], right[~inside], weights[~inside])
        confidence[inside] = special.expit(features[inside] @ fitted[0] + fitted[1])
    weights = weights / weights.sum()
    share = float(weights @ right)
    bins, error = [], 0.0
    for part in np.array_split(np.argsort(confidence, kind="stable"), BINS):
        mean, truth = (float(np.average(values[part], weights=weights[part])) for values in (confidence, right))
        bins.append(Bin(len(part), mean, truth))
        error += float(weights[part].sum()) * abs(mean - truth)
    brier = float(weights @ (confidence - right) ** 2)
    return Curve(tuple(slopes.tolist()), intercept, error, brier, share * (1 - share), tuple(bins)), confidence


def _logistic_regression(features: Floats, right: NDArray[np.bool_], weights: Floats) -> tuple[Floats, float]:
    """Slopes ``[F]`` and intercept; features whose slope would be negative are left out."""
    from sklearn.linear_model import LogisticRegression

    slopes = np.zeros(features.shape[1])
    used = np.flatnonzero(features.std(axis=0) > 1e-6)  # less is float32 rounding
    share = float(np.average(right, weights=weights))
    while len(used) and 0 < share < 1:
        centre, spread = features[:, used].mean(axis=0), features[:, used].std(axis=0)
        model = LogisticRegression(tol=1e-8, max_iter=1000)
        model.fit((features[:, used] - centre) / spread, right, sample_weight=weights * len(weights) / weights.sum())
        if (model.coef_[0] >= 0).all():
            slopes[used] = model.coef_[0] / spread
            return slopes, float(model.intercept_[0] - slopes[used] @ centre)
        used = np.delete(used, model.coef_[0].argmin())
    return slopes, float(special.logit(np.clip(share, 0.01, 0.99)))
