from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pytorch_metric_learning.distances import CosineSimilarity, LpDistance
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
from pytorch_metric_learning.utils.inference import CustomKNN

from nearkin.evaluation import neighbours, retrieval, retrieval_scores
from nearkin.evaluation.scores import score_named

EVERY_KIND = ["R@1", "R@2", "R@5", "MRR@1", "MRR@3", "P@R", "MAP@R", "P@1", "P@3", "P@40", "MAP@2", "MAP@40", "nDCG@1"]
EVERY_KIND += ["nDCG@3", "nDCG@40"]


def of_hits(hits, num_true, names):
    """The scores of rankings that are already there."""
    hits, num_true = torch.tensor(hits).bool(), torch.tensor(num_true)
    counted = num_true > 0
    return {name: float(score_named(name).per_query(hits[counted], num_true[counted]).mean()) for name in names}


def plain_ranking_scores(hits, num_true, names):
    """The definitions, one query and one place at a time."""

    def at(ranking, i):
        return ranking[i - 1] if i <= len(ranking) else 0

    def precision(ranking, k):
        return sum(at(ranking, i) for i in range(1, k + 1)) / k

    def one(name, ranking, true):
        kind, k = name.split("@")
        k = true if k == "R" else int(k)
        if kind == "P":
            return precision(ranking, k)
        if kind == "MAP":
            return sum(precision(ranking, i) * at(ranking, i) for i in range(1, k + 1)) / k
        if kind == "nDCG":
            gained = sum((2 ** at(ranking, i) - 1) / math.log2(i + 1) for i in range(1, k + 1))
            return gained / sum(1 / math.log2(i + 1) for i in range(1, min(k, true) + 1))
        return max(at(ranking, i) / (i if kind == "MRR" else 1) for i in range(1, k + 1))

    rows = [([int(hit) for hit in ranking], int(true)) for ranking, true in zip(hits, num_true, strict=True) if true]
    means = {name: sum(one(name, *row) for row in rows) / len(rows) for name in names}
    return means | {"queries_without_match": float(len(num_true) - len(rows))}


def plain_retrieval_scores(embeddings, labels, gallery=None, gallery_labels=None, *, distance, scores):
    """All distances at once, a stable sort per query."""
    queries = np.asarray(embeddings, dtype=np.float64)
    references, true = (queries, labels) if gallery is None else (np.asarray(gallery, dtype=np.float64), gallery_labels)
    if distance == "euclidean":
        far = ((queries[:, None] - references[None]) ** 2).sum(-1)
    else:
        norms = np.outer(np.linalg.norm(queries, axis=1), np.linalg.norm(references, axis=1))
        far = -(queries @ references.T) / np.where(norms > 0, norms, 1.0)
    hits, num_true = [], []
    for i, row in enumerate(far.round(12)):
        order = [j for j in np.argsort(row, kind="stable") if gallery is not None or j != i]
        hits.append([labels[i] == true[j] for j in order])
        num_true.append(sum(hits[-1]))
    return plain_ranking_scores(hits, num_true, scores)


def clusters(classes, per_class, dim, *, seed, spread=1.0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randperm(classes * per_class, generator=generator) % classes
    centres = torch.randn(classes, dim, generator=generator)
    return (centres[labels] + spread * torch.randn(len(labels), dim, generator=generator)).to(dtype), labels


# MPA's table 3, in per cent: R = 4, rankings of ten.
MPA_TABLE_3 = [
    ([1, 0, 0, 0, 0, 0, 0, 0, 0, 0], "100.0", "10.0", "25.0", "10.0", "39.0"),
    ([1, 0, 0, 0, 0, 0, 0, 0, 0, 1], "100.0", "20.0", "25.0", "12.0", "50.3"),
    ([1, 0, 1, 0, 0, 0, 0, 0, 0, 0], "100.0", "20.0", "41.7", "16.7", "58.6"),
    ([1, 0, 1, 0, 0, 0, 1, 0, 0, 1], "100.0", "40.0", "41.7", "25.0", "82.9"),
    ([1, 1, 1, 1, 0, 0, 0, 0, 0, 0], "100.0", "40.0", "100.0", "40.0", "100.0"),
]


@pytest.mark.parametrize("ranking, recall, precision, map_at_r, map_at_ten, ndcg", MPA_TABLE_3)
def test_table_3_of_mpa_to_the_digit(ranking, recall, precision, map_at_r, map_at_ten, ndcg):
    scores = of_hits([ranking], [4], ["R@10", "P@10", "MAP@R", "MAP@10", "nDCG@10"])
    printed = [f"{100 * value:.1f}" for value in scores.values()]
    assert printed == [recall, precision, map_at_r, map_at_ten, ndcg]


def test_worked_by_hand():
    # On a line, so that the order can be read off: query 0 sees 1, 2, 3, 4; query 1 sees 0, 2, 3, 4; query 2 sees
    # 1, 3, 0, 4; query 3 sees 2, 4, 1, 0; query 4 sees 3, 2, 1, 0.
    embeddings = torch.tensor([[0.0], [1.0], [2.1], [3.3], [4.6]])
    names = ["R@1", "R@2", "P@R", "MAP@R", "P@2", "MAP@3", "nDCG@2"]
    scores = retrieval_scores(embeddings, [5, 8, 5, 5, 8], distance="euclidean", scores=names)
    hits = [[0, 1, 1, 0], [0, 0, 0, 1], [0, 1, 1, 0], [1, 0, 0, 1], [0, 0, 1, 0]]
    assert scores.pop("queries_without_match") == 0.0
    assert scores["R@1"] == pytest.approx(1 / 5)
    assert scores["R@2"] == pytest.approx(3 / 5)
    assert scores["P@2"] == pytest.approx(3 / 10)
    assert scores["P@R"] == pytest.approx((1 / 2 + 0 + 1 / 2 + 1 / 2 + 0) / 5)
    assert scores["MAP@R"] == pytest.approx((1 / 4 + 0 + 1 / 4 + 1 / 2 + 0) / 5)
    assert scores["MAP@3"] == pytest.approx(((1 / 2 + 2 / 3) / 3 * 2 + 1 / 3 + 1 / 9) / 5)
    second = 1 / math.log2(3)
    assert scores["nDCG@2"] == pytest.approx((2 * second + 1) / (1 + second) / 5)
    assert scores == pytest.approx(of_hits(hits, [2, 1, 2, 2, 1], names))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_rankings_score_as_the_definitions_say(data):
    length, rows = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 6))
    hits = data.draw(st.lists(st.lists(st.booleans(), min_size=length, max_size=length), min_size=rows, max_size=rows))
    num_true = [sum(row) + data.draw(st.integers(0, 9)) for row in hits]
    num_true[0] = max(num_true[0], 1)
    expected = plain_ranking_scores(hits, num_true, EVERY_KIND)
    del expected["queries_without_match"]
    assert of_hits(hits, num_true, EVERY_KIND) == pytest.approx(expected, abs=1e-12)


coordinate = st.integers(-2, 2)
vector = st.tuples(coordinate, coordinate, coordinate)
labelled = st.lists(st.tuples(st.integers(0, 3), vector), min_size=2, max_size=25)


@settings(max_examples=120, deadline=None)
@given(labelled, st.none() | labelled, st.sampled_from(["cosine", "euclidean"]))
def test_scores_match_plain_numpy(queries, references, distance):
    labels, embeddings = [label for label, _ in queries], np.array([v for _, v in queries], dtype=np.float32)
    gallery = {}
    if references is not None:
        gallery = {
            "gallery": np.array([v for _, v in references], dtype=np.float32),
            "gallery_labels": [label for label, _ in references],
        }
    pool = gallery.get("gallery_labels", labels)
    if all(pool.count(label) == (references is None) for label in labels):
        with pytest.raises(ValueError, match="labels must give at least one query a true reference"):
            retrieval_scores(embeddings, labels, **gallery, distance=distance)
        return
    scores = retrieval_scores(embeddings, labels, **gallery, distance=distance, scores=EVERY_KIND)
    expected = plain_retrieval_scores(embeddings, labels, **gallery, distance=distance, scores=EVERY_KIND)
    assert list(scores) == list(expected)
    assert scores == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_every_float_type_scores_as_plain_numpy(distance, dtype):
    embeddings, labels = clusters(12, 9, 16, seed=1, spread=2.0, dtype=dtype)
    scores = retrieval_scores(embeddings, labels, distance=distance, scores=EVERY_KIND)
    expected = plain_retrieval_scores(embeddings.double().numpy(), labels.numpy(), distance=distance, scores=EVERY_KIND)
    assert 0.2 < scores["R@1"] < 0.95
    assert scores == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    "distance, measure", [("cosine", CosineSimilarity()), ("euclidean", LpDistance(normalize_embeddings=False))]
)
@pytest.mark.parametrize("with_gallery", [False, True])
def test_agrees_with_pytorch_metric_learning(distance, measure, with_gallery):
    embeddings, labels = clusters(15, 8, 16, seed=2, spread=1.2)
    peer = AccuracyCalculator(
        include=("precision_at_1", "r_precision", "mean_average_precision_at_r"),
        k="max_bin_count",
        knn_func=CustomKNN(measure),
        kmeans_func=lambda *_: None,
        device=torch.device("cpu"),
    )
    if with_gallery:
        query, gallery = slice(0, 50), slice(50, None)
        theirs = peer.get_accuracy(embeddings[query], labels[query], embeddings[gallery], labels[gallery])
        ours = retrieval_scores(
            embeddings[query], labels[query], embeddings[gallery], labels[gallery], distance=distance
        )
    else:
        theirs = peer.get_accuracy(embeddings, labels)
        ours = retrieval_scores(embeddings, labels, distance=distance)
    assert 0.1 < ours["MAP@R"] < 0.9
    assert ours["R@1"] == pytest.approx(theirs["precision_at_1"], abs=1e-6)
    assert ours["P@R"] == pytest.approx(theirs["r_precision"], abs=1e-6)
    assert ours["MAP@R"] == pytest.approx(theirs["mean_average_precision_at_r"], abs=1e-6)


def test_lonely_queries_are_left_out_and_counted():
    embeddings = np.array([[0.0], [1.0], [10.0], [11.0], [5.0]])
    scores = retrieval_scores(embeddings, [1, 1, 2, 2, 3], distance="euclidean", scores=["R@1", "P@R", "MAP@R"])
    assert scores == {"R@1": 1.0, "P@R": 1.0, "MAP@R": 1.0, "queries_without_match": 1.0}


def test_with_a_gallery_nothing_is_left_out():
    x = torch.eye(3)
    assert retrieval_scores(x, [0, 1, 2], x, [0, 1, 2], scores=["R@1"])["R@1"] == 1.0
    assert retrieval_scores(x, [0, 1, 2], x, [1, 2, 0], scores=["R@1"])["R@1"] == 0.0


def test_ties_go_to_the_lower_index():
    # Everything equal: query i sees all others in index order, and only 1 and 3 share a class.
    scores = retrieval_scores(torch.ones(4, 2), [7, 5, 8, 5], scores=["R@1", "R@2", "R@3"])
    assert [scores["R@1"], scores["R@2"], scores["R@3"]] == [0.0, 0.5, 1.0]
    assert scores["queries_without_match"] == 2.0


def test_a_collapsed_encoder_is_scored_by_index_alone():
    labels = np.arange(300) % 3
    scores = retrieval_scores(np.full((300, 32), 0.1, dtype=np.float32), labels, scores=["R@1"])
    # All but query 0 see row 0 first, of class 0; query 0 sees row 1, of class 1.
    assert scores["R@1"] == pytest.approx(99 / 300)


@pytest.mark.parametrize(
    "make",
    [
        lambda ids: torch.tensor([2**62 - 3 + i for i in ids]),
        lambda ids: np.array([2**62 - 3 + i for i in ids], dtype=np.uint64),
        lambda ids: [i - 2**62 for i in ids],
        lambda ids: np.array(ids, dtype=np.uint8)[::1],
        lambda ids: torch.tensor(ids, dtype=torch.int16),
        lambda ids: np.array(ids, dtype=">i4"),
    ],
)
def test_labels_are_any_integers(make):
    embeddings, labels = clusters(4, 10, 8, seed=3, spread=1.2)
    expected = retrieval_scores(embeddings, labels)
    assert retrieval_scores(embeddings, make(labels.tolist())) == expected
    assert 0.2 < expected["R@1"] < 1.0


def test_gallery_labels_may_have_another_type():
    embeddings, labels = clusters(4, 10, 8, seed=3)
    far_labels = [int(label) + 2**61 for label in labels]
    scores = retrieval_scores(embeddings[:20], torch.tensor(far_labels[:20]), embeddings[20:].numpy(), far_labels[20:])
    assert scores == retrieval_scores(embeddings[:20], labels[:20], embeddings[20:], labels[20:])


def test_order_of_the_rows_does_not_matter_without_ties():
    embeddings, labels = clusters(10, 7, 8, seed=4, spread=2.0)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    shuffled = retrieval_scores(embeddings[order], labels[order], scores=EVERY_KIND)
    assert shuffled == pytest.approx(retrieval_scores(embeddings, labels, scores=EVERY_KIND), abs=1e-12)


@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
def test_blocks_do_not_change_the_scores(monkeypatch, distance):
    embeddings, labels = clusters(9, 31, 8, seed=5, spread=2.0)
    labels[:60] = 0
    whole = retrieval_scores(embeddings, labels, distance=distance, scores=EVERY_KIND)
    for name, value in (("_QUERIES", 16), ("_TILE", 32), ("_SAMPLE", 64)):
        monkeypatch.setattr(neighbours, name, value)
    assert retrieval_scores(embeddings, labels, distance=distance, scores=EVERY_KIND) == whole
    monkeypatch.setattr(neighbours, "BLOCK_BYTES", 1)
    assert retrieval_scores(embeddings, labels, distance=distance, scores=EVERY_KIND) == whole


@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
@pytest.mark.parametrize("copies", [False, True])
def test_memory_stays_within_the_budget(monkeypatch, distance, copies):
    budget = 4 * 2**20
    monkeypatch.setattr(neighbours, "BLOCK_BYTES", budget)
    monkeypatch.setattr(neighbours, "_MOST_WORKERS", 1)
    embeddings, labels = clusters(300, 10, 16, seed=6)
    labels[:1000] = 0
    if copies:
        embeddings[1500:] = embeddings[:1500]
    tracemalloc.start()
    scores = retrieval_scores(
        embeddings, labels, distance=distance, scores=[*retrieval.RANKING_SCORES, "nDCG@8", "MAP@8"]
    )
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert scores["queries_without_match"] == 0.0
    assert peak < 5 * budget, "an N × N matrix of float64 has 72 MB"


@pytest.fixture(params=[False, True])
def tf32(request):
    """Switched by hand: to monkeypatch the switch looks like one that was not there before."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = request.param
    yield request.param
    torch.backends.cuda.matmul.allow_tf32 = before


@pytest.mark.gpu
@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
def test_cuda_scores_equal_those_of_the_cpu(distance, tf32):
    embeddings, labels = clusters(100, 20, 64, seed=8, spread=2.0)
    embeddings[1000:1100] = embeddings[:100]
    on_gpu = retrieval_scores(embeddings.cuda(), labels.cuda(), distance=distance, scores=EVERY_KIND)
    assert on_gpu == retrieval_scores(embeddings, labels, distance=distance, scores=EVERY_KIND)
    gallery = retrieval_scores(embeddings[:500].cuda(), labels[:500], embeddings[500:], labels[500:], distance=distance)
    assert gallery == retrieval_scores(
        embeddings[:500], labels[:500], embeddings[500:], labels[500:], distance=distance
    )


GOOD = {"embeddings": torch.eye(4), "labels": [0, 0, 1, 1]}


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"embeddings": torch.full((4, 2), float("nan"))}, "row 0 of 4"),
        ({"embeddings": np.array([[1.0], [1.0], [np.inf], [1.0]])}, "row 2 of 4"),
        ({"embeddings": torch.ones(0, 2), "labels": []}, r"embeddings must have shape \[N, D\] .*, got \[0, 2\]"),
        ({"embeddings": torch.ones(4, 2, 2)}, r"embeddings must have shape \[N, D\] .*, got \[4, 2, 2\]"),
        ({"labels": [0, 1]}, r"labels must have shape \[4\], got \[2\]"),
        ({"labels": torch.zeros(4, 1, dtype=torch.int64)}, r"labels must have shape \[4\], got \[4, 1\]"),
        ({"labels": ["a", "a", "b", "b"]}, r"labels must be integers, got <U1; .* numpy.unique\(labels"),
        ({"labels": [0.0, 0.0, 1.0, 1.0]}, "labels must be integers, got float64"),
        ({"labels": torch.zeros(4, dtype=torch.bfloat16)}, "labels must be integers, got float32"),
        ({"labels": [True, True, False, False]}, "labels must be integers, got bool"),
        ({"labels": [2**70, 1, 1, 1]}, "labels must be integers, got integers beyond 64 bits"),
        ({"labels": np.array([2**63, 1, 1, 1], dtype=np.uint64)}, "labels must fit in int64, got 9223372036854775808"),
        ({"labels": [0, 1, 2, 3]}, "each of the 4 queries is the only one of its class"),
        ({"gallery": torch.eye(4), "gallery_labels": [5, 5, 5, 5]}, "is of a class that the gallery does not have"),
        ({"gallery": torch.eye(4)}, "gallery_labels must be given together with gallery"),
        ({"gallery_labels": [1]}, "gallery must be given together with gallery_labels"),
        ({"gallery": torch.eye(4), "gallery_labels": [1]}, r"gallery_labels must have shape \[4\], got \[1\]"),
        (
            {"gallery": torch.ones(2, 3), "gallery_labels": [0, 1]},
            "gallery must have 4 columns like the queries, got 3",
        ),
        ({"gallery": torch.ones(0, 4), "gallery_labels": []}, r"gallery must have shape .*, got \[0, 4\]"),
        ({"scores": ["R@0"]}, "unknown score 'R@0'"),
        ({"scores": ["R@1", "NMI"]}, "scores must be of rankings, got R@1, NMI"),
        ({"distance": "l2"}, "unknown distance 'l2': valid: cosine, euclidean"),
    ],
)
def test_bad_input_is_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        retrieval_scores(**{**GOOD, **arguments})


def test_a_perfect_ranking_scores_exactly_one():
    names = ["R@1", "P@R", "MAP@R", "P@9", "MAP@9", "nDCG@1", "nDCG@5", "nDCG@9", "nDCG@50"]
    assert set(of_hits([[1] * 9], [9], names).values()) == {1.0}


def test_a_ranking_is_followed_as_far_as_the_scores_look():
    few, many = score_named("R@4"), score_named("P@6")
    num_true = np.array([0, 1, 3, 9])
    depth, first = retrieval.depths([few], num_true, 8)
    assert (depth.tolist(), first.tolist()) == ([1, 1, 3, 8], [4, 4, 4, 8])
    depth, first = retrieval.depths([], num_true, 8)
    assert depth.tolist() == first.tolist() == [1, 1, 3, 8]
    depth, first = retrieval.depths([few, many], num_true, 8)
    assert (depth.tolist(), first.tolist()) == ([6, 6, 6, 8], [6, 6, 6, 8])
    depth, first = retrieval.depths([few, many], num_true[:3], 5)
    assert (depth.tolist(), first.tolist()) == ([5, 5, 5], [5, 5, 5])


def test_one_rank_below_the_last_true_reference_still_counts():
    angles = torch.tensor([0.0, 1.0, 2.4, 4.0]) / 10
    embeddings = torch.stack([angles.cos(), angles.sin()], dim=1)
    # Every query has one true reference, and a wrong image is nearer. It is second for the first and the last query.
    scores = retrieval_scores(embeddings, [0, 1, 0, 1], scores=["R@1", "R@2"])
    assert (scores["R@1"], scores["R@2"]) == (0.0, 0.5)
