"""Confidence of hits: right as often as it says, never out of order, and honest about new classes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import optimize

from nearkin.evaluation.neighbours import nearest
from nearkin.index import calibration
from nearkin.index.calibration import Bin, Calibration, fit, fit_on_others
from nearkin.runs.model import HeldOut


def kinds(classes, each, spread, seed=0, dim=16):
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), each)
    vectors = rng.normal(size=(classes, dim))[labels] + spread * rng.normal(size=(classes * each, dim))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32), labels


@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
@pytest.mark.parametrize("spread", [0.5, 0.9])
def test_hits_are_right_as_often_as_their_confidence_says(distance, spread):
    fitted = fit(*kinds(80, 8, spread), distance, "drawn")
    assert fitted.brier < fitted.brier_of_share
    vectors, labels = kinds(80, 8, spread, seed=1)
    far = np.linalg.norm(vectors[:, None].astype(np.float64) - vectors[None], axis=2)
    scores = 1 - far**2 / 2 if distance == "cosine" else -far
    np.fill_diagonal(scores, -np.inf)
    top = np.argsort(-scores, axis=1)[:, :10]
    sure = np.array([[fitted.confidence(scores[i, j]) for j in row] for i, row in enumerate(top)])
    right = labels[top] == labels[:, None]
    assert abs(sure.mean() - right.mean()) < 0.05
    for low, high in ((0, 0.5), (0.5, 1)):
        some = (sure >= low) & (sure < high)
        if some.sum() > 200:
            assert abs(sure[some].mean() - right[some].mean()) < 0.1
    assert np.mean((sure - right) ** 2) == pytest.approx(fitted.brier, abs=0.05)


def test_more_similar_is_never_less_sure():
    rng = np.random.default_rng(0)
    scores = rng.uniform(-1, 1, 500)
    slope, _ = calibration._platt(scores, (scores < 0).astype(np.float64))
    assert slope == 0.0
    separable = calibration._platt(scores, (scores > 0).astype(np.float64))
    assert np.isfinite(separable).all()
    sure = [Calibration(*separable, "", 1, 0, 0, ()).confidence(score) for score in np.linspace(-1, 1, 50)]
    assert sure == sorted(sure)
    assert 0 < sure[0] < sure[-1] < 1


def test_too_little_to_learn_from():
    vectors, labels = kinds(5, 4, 0.5)
    assert fit(vectors, np.zeros_like(labels), "cosine", "") is None
    assert fit(vectors, np.arange(len(labels)), "cosine", "") is None
    assert fit(vectors[:2], labels[[0, 5]], "cosine", "") is None


def test_where_all_near_hits_are_right_farther_ones_are_looked_at():
    vectors, labels = kinds(4, 30, 0.05)
    fitted = fit(vectors, labels, "cosine", "")
    assert fitted.hits > 10 * len(labels)
    assert fitted.confidence(1.0) > 0.9 > 0.1 > fitted.confidence(0.0)


@pytest.mark.parametrize("spread", [0.4, 0.8])
def test_labels_are_right_as_often_as_their_confidence_says_and_unknown_kinds_are_less_sure(spread):
    """Against a plain count of votes, on kinds that the curve was not fitted to."""
    curve = fit(*kinds(60, 8, spread), "cosine", "drawn")
    vectors, labels = kinds(60, 8, spread, seed=1)
    scores = vectors.astype(np.float64) @ vectors.T.astype(np.float64)
    np.fill_diagonal(scores, -np.inf)
    sure = {True: [], False: []}
    right = []
    for i, own in enumerate(labels):
        for known in (True, False):
            others = np.flatnonzero((np.arange(len(labels)) != i) & (known | (labels != own)))
            nearest = others[np.argsort(-scores[i, others])[:10]]
            votes = {}
            for j in nearest:
                votes[labels[j]] = votes.get(labels[j], 0) + curve.confidence(scores[i, j])
            ordered = sorted(votes.values(), reverse=True)
            sure[known].append(curve.label.confidence(ordered[0] - (ordered[1] if len(ordered) > 1 else 0)))
            if known:
                right.append(max(votes, key=votes.get) == own)
    assert curve.label.brier < curve.label.brier_of_share
    assert np.mean(sure[True]) > 0.1 + np.mean(sure[False])
    # Four of known kinds for one of an unknown one, as it was fitted.
    assert (4 * np.mean(sure[True]) + np.mean(sure[False])) / 5 == pytest.approx(4 * np.mean(right) / 5, abs=0.08)


@pytest.mark.parametrize("classes", [60, 600])
def test_among_more_kinds_a_hit_is_as_sure_as_it_is_right_there(classes):
    spread = 0.9
    few = fit(*kinds(60, 6, spread), "cosine", "drawn")
    vectors, labels = kinds(classes, 6, spread, seed=1)
    curve = few.among(calibration._classes_of(labels))
    scores, right = calibration._hits(vectors, labels, "cosine")
    sure = np.vectorize(curve.confidence)(scores)
    unmoved = np.vectorize(few.confidence)(scores)
    assert abs(sure.mean() - right.mean()) < 0.06
    if classes == 600:
        assert unmoved.mean() - right.mean() > 0.15, "or nothing had to be moved"
        assert np.mean((sure - right) ** 2) < right.mean() * (1 - right.mean()) < np.mean((unmoved - right) ** 2)


def test_more_images_of_the_same_kinds_leave_the_curve_where_it_is():
    few = fit(*kinds(40, 6, 0.9), "cosine", "drawn")
    many = calibration.effective_classes(np.full(40, 60))
    assert few.among(many).shift == pytest.approx(0.0, abs=0.25)
    assert -1 <= few.growth < -0.3
    assert few.among(few.classes).shift == 0
    assert (few.images, few.classes) == (240, pytest.approx(40 * 239 / (40 * 5) * 40 * 6 / 240))


def test_too_few_kinds_to_see_how_it_changes_are_taken_to_be_alike():
    assert fit(*kinds(9, 6, 0.9), "cosine", "drawn").growth == -1.0


def likeliest(features, target, weights):
    """Slopes and intercept by another's minimiser."""
    design = np.concatenate([features, np.ones((len(features), 1))], axis=1)

    def loss(model):
        margin = design @ model
        probability = 1 / (1 + np.exp(-margin))
        value = weights @ (np.logaddexp(0, margin) - target * margin) / weights.sum()
        return value, design.T @ (weights * (probability - target)) / weights.sum()

    found = optimize.minimize(loss, np.zeros(design.shape[1]), jac=True, method="BFGS", options={"gtol": 1e-9})
    return found.x[:-1], found.x[-1]


@pytest.mark.parametrize("rises", [0.3, 3.0, -2.0])
def test_the_curve_is_the_likeliest_for_platts_targets_and_never_falls(rises):
    """His section 2.2: (N₊ + 1) / (N₊ + 2) for the right ones, 1 / (N₋ + 2) for the wrong ones."""
    rng = np.random.default_rng(5)
    scores = rng.uniform(-1, 1, 60)
    right = (rng.uniform(size=60) < 1 / (1 + np.exp(-(rises * scores + 0.4)))).astype(float)
    positive = int(right.sum())
    target = np.array([(positive + 1) / (positive + 2) if each else 1 / (60 - positive + 2) for each in right])
    (slope,), intercept = likeliest(scores[:, None], target, np.ones(60))
    assert (slope > 1) == (rises > 1)
    if slope < 0:
        slope, intercept = 0.0, math.log(target.mean() / (1 - target.mean()))
    assert calibration._platt(scores, right) == pytest.approx((slope, intercept), abs=1e-5)


@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
@pytest.mark.parametrize("dim", [3, 16, 64])
def test_scores_that_are_all_the_same_but_for_rounding_tell_nothing(distance, dim):
    """An encoder that has collapsed: a slope from last bits would make every other score impossible or certain."""
    vectors = np.repeat(np.random.default_rng(0).normal(size=(1, dim)), 30, axis=0).astype(np.float32)
    labels = np.arange(30) % 3
    curve = fit(vectors, labels, distance, "")
    share = (labels[nearest(vectors, k=10, distance=distance)[0]] == labels[:, None]).mean()
    for score in (-1.0, 0.5, 1.0):
        assert curve.confidence(score) == pytest.approx(share, abs=0.01)


def plain_hits(vectors, labels, k=10):
    """Score and whether it is right of every hit, and the number of kinds."""
    scores = vectors.astype(np.float64) @ vectors.T.astype(np.float64)
    hits, alike = [], 0
    for i in range(len(labels)):
        others = sorted((j for j in range(len(labels)) if j != i), key=lambda j: -scores[i, j])
        hits += [(scores[i, j], labels[j] == labels[i]) for j in others[:k]]
        alike += sum(labels[j] == labels[i] for j in others)
    return hits, len(labels) * (len(labels) - 1) / alike


@pytest.mark.parametrize(("classes", "most_parts", "seed"), [(10, 2, 2), (19, 2, 0), (20, 4, 4)])
def test_how_it_changes_with_kinds_is_that_of_all_halves_and_quarters(classes, most_parts, seed):
    """Hit by hit; every collection has the same say, however many hits it has."""
    vectors, labels = kinds(classes, 6, 1.0, seed=seed)
    order = np.random.default_rng(0).permutation(classes)
    features, target, weights = [], [], []
    for parts in [parts for parts in (1, 2, 4) if parts <= most_parts]:
        for part in range(parts):
            mine = [i for i in range(len(labels)) if labels[i] in order[part::parts]]
            hits, number = plain_hits(vectors[mine], labels[mine])
            features += [(score, math.log(number)) for score, _ in hits]
            target += [float(right) for _, right in hits]
            weights += [1 / len(hits)] * len(hits)
    (_, expected), _ = likeliest(np.array(features), np.array(target), np.array(weights))
    assert -0.98 < expected < -0.02, "or it is cut off"
    assert calibration._growth(vectors, labels, "cosine") == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(("moves", "classes"), [(True, 60), (False, 60), (True, 12)])
def test_a_curve_from_some_classes_is_moved_to_the_number_of_others_and_measured_there(moves, classes):
    known, asked = (HeldOut(*kinds(*each, seed=seed)) for seed, each in enumerate([(24, 6, 0.9), (classes, 6, 0.9)]))
    found = fit_on_others(known, asked, "cosine", "others", moves=moves)
    alone = fit(known.vectors, known.labels, "cosine", "known")
    assert (found.slope, found.intercept) == (alone.slope, alone.intercept)
    assert (found.images, found.classes, found.source) == (144, alone.classes, "others")
    assert found.growth == (alone.growth if moves else 0)
    hits, number = plain_hits(asked.vectors, asked.labels)
    _, known_number = plain_hits(known.vectors, known.labels)
    assert found.shift == pytest.approx(found.growth * math.log(number / known_number))
    sure = [1 / (1 + math.exp(-(alone.slope * score + alone.intercept + found.shift))) for score, _ in hits]
    assert found.brier == pytest.approx(np.mean([(p - right) ** 2 for p, (_, right) in zip(sure, hits, strict=True)]))
    share = np.mean([right for _, right in hits])
    assert (found.hits, found.brier_of_share) == (len(hits), pytest.approx(share * (1 - share)))
    assert fit_on_others(known, HeldOut(asked.vectors[:2], asked.labels[:2]), "cosine", "") is None
    assert fit_on_others(HeldOut(known.vectors[:2], known.labels[:2]), asked, "cosine", "") is None


def test_hits_of_a_tenth_are_counted_together_and_certainty_is_in_the_last():
    confidence, right = np.array([0.05, 0.07, 0.25, 0.95, 1.0]), np.array([0.0, 1.0, 0.0, 1.0, 1.0])
    assert calibration._measured((1.0, 0.0), confidence, right, "").reliability == (
        Bin(2, pytest.approx(0.06), 0.5),
        Bin(1, pytest.approx(0.25), 0.0),
        Bin(2, pytest.approx(0.975), 1.0),
    )
