"""Confidences are right as often as they say, on known and unknown classes, and rise with the score."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import optimize

from nearkin.evaluation import confidence as module
from nearkin.evaluation.confidence import (
    ClassProfile,
    Vote,
    confidence_among,
    learn_confidence,
    vote,
    without_itself,
)


def collection(classes, per_class, spread, *, seed=0, dim=16, centres=None):
    """Vectors of length 1 around a centre for each class, and their labels."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(99).normal(size=(200, dim)) if centres is None else centres
    labels = np.repeat(np.arange(classes), per_class)
    vectors = centres[labels] + spread * rng.normal(size=(len(labels), dim))
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True), labels


def plain_vote(query, vectors, labels, rows, distance, typical):
    """The label of a query and its two numbers, class by class."""

    def score(a, b):
        if distance == "euclidean":
            return -math.dist(a, b)
        return float(np.dot(a, b) / math.sqrt(np.dot(a, a) * np.dot(b, b)))

    hits = sorted(rows, key=lambda row: (-score(query, vectors[row]), row))[:50]
    best = max(score(query, vectors[row]) for row in hits)
    nearness, shares, closeness = {}, {}, {}
    for label in {int(labels[row]) for row in hits}:
        members = [vectors[row] for row in rows if labels[row] == label]
        mean = sum(members) / len(members)
        nearest = max(score(query, vectors[row]) for row in hits if labels[row] == label)
        nearness[label] = (nearest + score(query, mean)) / 2
        rest = [(sum(members) - one) / (len(members) - 1) for one in members] if len(members) > 1 else []
        spread = np.mean([score(one, other) for one, other in zip(members, rest, strict=True)]) if rest else typical
        closeness[label] = score(query, mean) - spread
        shares[label] = sum(math.exp((score(query, vectors[r]) - best) / 0.05) for r in hits if labels[r] == label)
    winner = max(nearness, key=nearness.get)
    return winner, closeness[winner], shares[winner] / sum(shares.values())


@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
def test_a_vote_is_what_it_says_class_by_class(distance):
    vectors, labels = collection(7, 9, 0.8)
    vectors, labels = np.append(vectors, vectors[:1] * 0.5, axis=0), np.append(labels, 7)  # a class of one image
    profiles = {label: ClassProfile.of(vectors[labels == label], distance) for label in range(8)}
    for query in [*collection(7, 1, 0.8, seed=1)[0], vectors[-1]]:
        far = np.linalg.norm(vectors - query, axis=1)
        cosines = vectors @ query / np.linalg.norm(vectors, axis=1) / np.linalg.norm(query)
        scores = cosines if distance == "cosine" else -far
        order = np.argsort(-scores, kind="stable")[:50]
        found = vote(query, labels[order], scores[order], profiles, distance, 0.3)
        assert found == pytest.approx(plain_vote(query, vectors, labels, range(len(labels)), distance, 0.3))
        assert isinstance(found.label, int)


@pytest.mark.parametrize("spread", [0.5, 0.8, 1.1])
def test_hits_and_labels_are_right_as_often_as_they_say_on_known_and_unknown_classes(spread):
    """Two thirds of the new queries are of classes that are there, one third of classes that are not."""
    vectors, labels = collection(40, 12, spread)
    learned = confidence_among(vectors, labels, np.arange(len(labels)), "cosine")
    queries, truth = collection(60, 8, spread, seed=1)
    profiles = {label: ClassProfile.of(vectors[labels == label], "cosine") for label in range(40)}
    sure, right, hit_sure, hit_right = [], [], [], []
    for query, true in zip(queries, truth, strict=True):
        scores = vectors @ query
        order = np.argsort(-scores)[:50]
        answer = vote(query, labels[order], scores[order], profiles, "cosine", learned.typical_spread)
        sure.append(learned.of_label(answer))
        right.append(answer.label == true)
        hit_sure += learned.of_hits(scores[order[:10]], labels[order], scores[order]).tolist()
        hit_right += (labels[order[:10]] == true).tolist()
    for confidences, rights, curve in ((sure, right, learned.label), (hit_sure, hit_right, learned.hit)):
        confidences, rights = np.array(confidences), np.array(rights)
        for part in np.array_split(np.argsort(confidences), 4):
            assert confidences[part].mean() == pytest.approx(rights[part].mean(), abs=0.12)
        brier = np.mean((confidences - rights) ** 2)
        assert brier == pytest.approx(curve.brier, abs=0.04)
        assert brier < curve.brier_of_constant
    known, sure = truth < 40, np.array(sure)
    assert np.mean(sure[known] < 0.5) == pytest.approx(learned.refused, abs=0.1)
    assert np.mean(sure[~known] < 0.5) == pytest.approx(learned.unknown_refused, abs=0.1)
    assert np.mean(np.array(right)[known]) == pytest.approx(learned.accuracy, abs=0.08)


def test_what_trained_does_not_count():
    """Images that were pulled to their class would promise too much: only the others are learned from."""
    vectors, labels = collection(30, 12, 1.0)
    trained = np.arange(len(labels)) % 12 > 1
    means = np.stack([vectors[labels == label].mean(axis=0) for label in range(30)])
    pulled = np.where(trained[:, None], 0.2 * vectors + 0.8 * means[labels], vectors)
    pulled /= np.linalg.norm(pulled, axis=1, keepdims=True)
    honest = confidence_among(pulled, labels, np.flatnonzero(~trained), "cosine")
    flattered = confidence_among(pulled, labels, np.arange(len(labels)), "cosine")
    assert honest.images == 60
    assert honest.accuracy < flattered.accuracy - 0.03
    new, truth = collection(30, 4, 1.0, seed=2)
    scores = new @ pulled.T
    top = np.argsort(-scores, axis=1)[:, :50]
    right = (labels[top[:, :10]] == truth[:, None]).mean()
    promised = [
        np.mean(
            [who.of_hits(row[order[:10]], labels[order], row[order]) for row, order in zip(scores, top, strict=True)]
        )
        for who in (honest, flattered)
    ]
    # Two thirds of its queries are of known classes, and these are all known.
    assert promised[0] == pytest.approx(right, abs=0.12)
    assert abs(promised[1] - right) > abs(promised[0] - right) + 0.05


def test_a_class_counts_by_its_images_however_few_are_left_to_learn_from():
    """Class 0 is easy and nearly all trained, class 1 is hard and has as many images, none of which trained."""
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1, 2], 40)
    vectors = rng.normal(size=(120, 8))
    vectors[:40] = [9, 0, 0, 0, 0, 0, 0, 0] + 0.1 * vectors[:40]
    unseen = np.r_[np.arange(2), np.arange(40, 120)]
    learned = confidence_among(vectors, labels, unseen, "cosine")
    guessed = confidence_among(vectors[40:], labels[40:], np.arange(80), "cosine")
    assert guessed == "it takes 3 classes, got 2"
    assert learned.accuracy > 0.33 + 0.25
    assert confidence_among(vectors, labels, unseen[2:], "cosine").accuracy < learned.accuracy - 0.1


def test_too_little_to_learn_from_is_named():
    vectors, labels = collection(5, 8, 0.5)
    rows = np.arange(len(labels))
    few = "it takes 15 images new to the encoder, with another of their class, got"
    assert confidence_among(vectors, labels, rows, "cosine").images == 40
    assert confidence_among(vectors, labels, rows[:15], "cosine").images == 15
    assert confidence_among(vectors, labels, rows[:14], "cosine") == f"{few} 14"
    assert confidence_among(vectors, labels // 3, rows, "cosine") == "it takes 3 classes, got 2", "however many images"
    assert confidence_among(vectors, rows, rows, "cosine") == f"{few} 0", "no image has another of its class"
    vectors, labels = collection(5, 20, 0.5)
    one = confidence_among(vectors, labels, np.arange(20), "cosine")
    assert one == "it takes 2 classes with images new to the encoder, got 1", "no other measures it"


@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
def test_vectors_that_are_all_the_same_tell_nothing(distance):
    """An encoder that has collapsed: a slope from last bits would make every other score impossible or certain."""
    vectors = np.repeat(np.random.default_rng(0).normal(size=(1, 16)), 30, axis=0)
    learned = confidence_among(vectors, np.arange(30) % 3, np.arange(30), distance)
    assert learned.hit.slopes[0] == 0.0


def test_a_class_that_is_nobodys_neighbour_is_no_error():
    """Of a collapsed network all vectors are equal, and the first ones are the neighbours of every image."""
    vectors, labels = collection(60, 4, 0.0, centres=np.ones((60, 16)))
    learned = confidence_among(vectors, labels, np.arange(len(labels)), "cosine")
    assert learned.accuracy < 0.1


def test_classes_larger_than_what_is_passed_over_have_no_unknown_half(monkeypatch):
    monkeypatch.setattr(module, "MOST_PASSED_OVER", 5)
    monkeypatch.setattr(module, "VOTERS", 10)
    vectors, labels = collection(4, 40, 0.2)
    vectors, labels = np.append(vectors, collection(1, 40, 0.2, seed=3)[0], axis=0), np.append(labels, [4] * 40)
    # The two classes that lie around one centre find each other; of the rest every near hit is their own class.
    learned = confidence_among(vectors, labels, np.arange(200), "cosine")
    assert (learned.images, learned.classes) == (80, 2)
    near = confidence_among(vectors[40:], labels[40:], np.arange(160), "cosine")
    assert near == "it takes 15 images with one of another class among the nearest, got 0"


def test_only_some_of_many_images_are_searched(monkeypatch):
    monkeypatch.setattr(module, "MOST_IMAGES", 50)
    vectors, labels = collection(20, 12, 0.8)
    asked = []

    def search(rows, k):
        asked.append((len(rows), k))
        scores = vectors[rows] @ vectors.T
        order = np.argsort(-scores, axis=1)[:, : k + 1]
        return without_itself(order, np.take_along_axis(scores, order, axis=1), rows)

    learned = learn_confidence(labels, np.arange(240), lambda rows: vectors[rows], search, "cosine")
    assert asked == [(50, 62)]
    assert learned.images == 50


def test_the_curve_is_the_likeliest_with_a_weak_prior_and_leaves_out_what_falls():
    rng = np.random.default_rng(5)
    features = rng.normal(size=(200, 2)) * [0.1, 3.0] + [0.5, -1.0]
    weights = rng.uniform(0.5, 1.5, 200)

    def likeliest(x, right):
        """By another's minimiser: standardised features, half their squared slopes as a penalty."""
        scaled = (x - x.mean(axis=0)) / x.std(axis=0)
        weight = weights * len(weights) / weights.sum()

        def loss(model):
            margin = scaled @ model[:-1] + model[-1]
            return weight @ (np.logaddexp(0, margin) - right * margin) + 0.5 * (model[:-1] ** 2).sum()

        found = optimize.minimize(loss, np.zeros(x.shape[1] + 1), method="BFGS", options={"gtol": 1e-8}).x
        slopes = found[:-1] / x.std(axis=0)
        return slopes, found[-1] - slopes @ x.mean(axis=0)

    for rises, used in (((20.0, 0.7), [0, 1]), ((20.0, -0.7), [0])):
        right = rng.uniform(size=200) < 1 / (1 + np.exp(-((features - [0.5, -1.0]) @ rises)))
        slopes, intercept = module._logistic_regression(features, right, weights)
        expected = likeliest(features[:, used], right)
        assert slopes[used] == pytest.approx(expected[0], rel=1e-3)
        assert intercept == pytest.approx(expected[1], rel=1e-3)
        assert slopes[[i for i in (0, 1) if i not in used]].tolist() == [0.0] * (2 - len(used))
    slopes, intercept = module._logistic_regression(features, np.ones(200, bool), weights)
    assert (slopes.tolist(), intercept) == ([0, 0], pytest.approx(math.log(99)))


def test_reliability_is_measured_on_folds_that_were_not_fitted_to():
    """In each fold right and wrong are the other way round: what was learned elsewhere is wrong there."""
    features = np.tile([[0.0], [1.0]], (50, 1))
    folds = np.repeat([0, 1], 50)
    right = (features[:, 0] > 0) ^ (folds == 1)
    curve, unseen = module._fit(features, right, np.ones(100), folds)
    assert unseen[:50].tolist() == [0.5] * 50, "a confidence never falls as a feature rises"
    assert np.all((unseen[50:] > 0.5) != right[50:])
    assert curve.brier == pytest.approx(np.mean((unseen - right) ** 2))
    assert curve.brier > curve.brier_of_constant == 0.25
    tenths = [part for part in np.array_split(sorted(range(100), key=lambda i: (unseen[i], i)), 10)]
    gaps = [abs(np.mean([unseen[i] for i in part]) - np.mean([right[i] for i in part])) for part in tenths]
    assert curve.calibration_error == pytest.approx(np.mean(gaps))
    assert sum(bin.answers for bin in curve.bins) == 100


def test_a_higher_score_is_never_less_sure_and_agreement_makes_surer():
    learned = confidence_among(*collection(20, 8, 0.9), np.arange(160), "cosine")
    labels, scores = np.array([1, 1, 1, 2]), np.array([0.9, 0.85, 0.8, 0.7])
    sure = learned.of_hits(np.linspace(-1, 1, 50), labels, scores)
    assert (np.diff(sure) > 0).all()
    assert (learned.of_hits(scores, np.array([1, 2, 3, 4]), scores) < learned.of_hits(scores, labels, scores)).all()
    nearer, farther = (learned.of_label(Vote("a", closeness, 0.8)) for closeness in (0.1, -0.1))
    assert nearer > farther


def test_copies_do_not_keep_an_image_from_being_left_out():
    found = np.array([[3, 0, 1], [5, 6, 7]])
    scores = np.array([[1.0, 0.9, 0.8], [1.0, 1.0, 1.0]])
    rows, left = without_itself(found, scores, np.array([0, 2]))
    assert rows.tolist() == [[3, 1], [5, 6]]
    assert left.tolist() == [[1.0, 0.8], [1.0, 1.0]]
