from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from nearkin.evaluation import nearest, neighbours
from nearkin.evaluation.vectors import as_vectors


def exact_order(query, gallery, distance, left_out=None):
    """Gallery rows of integers by distance and then index, in exact arithmetic."""

    def key(row):
        if distance == "euclidean":
            return sum((a - b) ** 2 for a, b in zip(query, row, strict=True))
        dot = sum(a * b for a, b in zip(query, row, strict=True))
        # The sign of the cosine times its square times ‖query‖², which orders like the cosine.
        return -Fraction(dot * abs(dot), sum(b * b for b in row) or 1)

    return sorted((j for j in range(len(gallery)) if j != left_out), key=lambda j: (key(gallery[j]), j))


def grid(reach, dim, seed):
    vectors = list(itertools.product(range(-reach, reach + 1), repeat=dim))
    order = np.random.default_rng(seed).permutation(len(vectors))
    return [vectors[i] for i in order]


@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
@pytest.mark.parametrize("reach, dim", [(4, 2), (2, 3)])
def test_order_on_a_grid_full_of_ties_is_that_of_exact_arithmetic(distance, reach, dim):
    vectors = grid(reach, dim, seed=0)
    indices, _ = nearest(torch.tensor(vectors, dtype=torch.float32), k=len(vectors) - 1, distance=distance)
    expected = [exact_order(vector, vectors, distance, left_out=i) for i, vector in enumerate(vectors)]
    assert indices.tolist() == expected


coordinate = st.integers(-2, 2)
vectors_of_three = st.lists(st.tuples(coordinate, coordinate, coordinate), min_size=1, max_size=12)


@settings(max_examples=60, deadline=None)
@given(vectors_of_three, vectors_of_three, st.sampled_from(["cosine", "euclidean"]), st.data())
def test_gallery_order_matches_exact_arithmetic(queries, gallery, distance, data):
    k = data.draw(st.integers(1, len(gallery)))
    indices, _ = nearest(np.array(queries, dtype=np.float64), np.array(gallery), k=k, distance=distance)
    assert indices.tolist() == [exact_order(query, gallery, distance)[:k] for query in queries]


def test_similarities_are_cosines_or_negative_distances():
    rng = np.random.default_rng(3)
    queries, gallery = rng.normal(size=(7, 5)), rng.normal(size=(11, 5))
    cosines = (queries @ gallery.T) / np.outer(np.linalg.norm(queries, axis=1), np.linalg.norm(gallery, axis=1))
    distances = np.linalg.norm(queries[:, None] - gallery[None], axis=-1)
    for distance, expected in (("cosine", cosines), ("euclidean", -distances)):
        indices, similarities = nearest(queries, gallery, k=11, distance=distance)
        assert indices.tolist() == np.argsort(-expected, axis=1, kind="stable").tolist()
        np.testing.assert_allclose(similarities, -np.sort(-expected, axis=1), rtol=1e-11, atol=1e-13)


def test_the_query_is_left_out_by_index_even_when_its_copies_are_in_front():
    indices, similarities = nearest(torch.ones(4, 3), k=3)
    assert indices.tolist() == [[1, 2, 3], [0, 2, 3], [0, 1, 3], [0, 1, 2]]
    assert similarities.tolist() == [[1.0] * 3] * 4


def test_exclude_self_can_be_switched_either_way():
    x = torch.eye(3)
    assert nearest(x, k=1, exclude_self=False)[0].tolist() == [[0], [1], [2]]
    assert nearest(x, x, k=1)[0].tolist() == [[0], [1], [2]]
    assert nearest(x, x, k=1, exclude_self=True)[0].tolist() == [[1], [0], [0]]
    with pytest.raises(ValueError, match="exclude_self needs as many gallery rows as queries \\(3\\), got 2"):
        nearest(x, x[:2], k=1, exclude_self=True)


class RoundsByColumn(TorchDispatchMode):
    """A matrix product whose last bits depend on the column, as those of tiled and threaded ones may."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.mm.default:
            out = out * (1.0 + torch.linspace(-4e-16, 4e-16, out.shape[1], dtype=torch.float64))
        return out


@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
def test_copies_tie_whatever_the_matrix_product_rounds(distance):
    rng = np.random.default_rng(0)
    which = rng.integers(0, 20, size=203)
    with RoundsByColumn():
        indices, similarities = nearest(
            rng.normal(size=(400, 17)), rng.normal(size=(20, 17))[which], k=203, distance=distance
        )
    original = which[indices.numpy()]
    same = original[:, 1:] == original[:, :-1]
    assert (same.sum(axis=1) == 203 - len(np.unique(which))).all()
    assert (np.diff(indices.numpy(), axis=1)[same] > 0).all()
    assert (np.diff(similarities.numpy(), axis=1)[same] == 0).all()


def test_multiples_of_a_vector_tie_under_cosine():
    vector = np.array([0.1, -0.7, 0.3])
    scales = np.array([4.0, 1.0, 0.5, 2.0, 1024.0])
    indices, similarities = nearest(vector[None] + [[0.0, 0.2, 0.0]], scales[:, None] * vector, k=5)
    assert indices.tolist() == [[0, 1, 2, 3, 4]]
    assert len(set(similarities[0].tolist())) == 1


def test_outliers_do_not_blur_the_near_ones():
    gallery = torch.tensor([[1e9], [1.003], [1.002], [1.001], [-1e9]], dtype=torch.float64)
    indices, similarities = nearest(torch.tensor([[1.0]]), gallery, k=5, distance="euclidean")
    assert indices.tolist() == [[3, 2, 1, 0, 4]]
    assert similarities[0, :3].tolist() == pytest.approx([-0.001, -0.002, -0.003], abs=1e-6)


@pytest.mark.parametrize("magnitude", [1e-300, 1e300])
@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
def test_extreme_magnitudes_neither_overflow_nor_vanish(magnitude, distance):
    x = np.array([[1.0, 0.0], [0.0, 1.0], [0.8, 0.3]]) * magnitude
    indices, similarities = nearest(x, k=2, distance=distance)
    assert indices.tolist() == [[2, 1], [2, 0], [0, 1]]
    expected = 0.8 / math.hypot(0.8, 0.3) if distance == "cosine" else -math.hypot(0.2, 0.3) * magnitude
    assert float(similarities[0, 0]) == pytest.approx(expected)


def test_zero_vectors_have_cosine_zero():
    indices, similarities = nearest(torch.zeros(1, 2), torch.tensor([[1.0, 0.0], [0.0, 0.0], [-1.0, 0.0]]), k=3)
    assert indices.tolist() == [[0, 1, 2]]
    assert str(similarities.tolist()) == "[[0.0, 0.0, 0.0]]"


def test_blocks_do_not_change_the_result(monkeypatch):
    x = torch.randn(101, 8, generator=torch.Generator().manual_seed(0))
    x[50:60] = x[:10]
    whole = nearest(x, k=100)
    monkeypatch.setattr(neighbours, "BLOCK_BYTES", 1)
    one_by_one = nearest(x, k=100)
    assert torch.equal(whole[0], one_by_one[0])
    torch.testing.assert_close(whole[1], one_by_one[1], rtol=0, atol=1e-13)


def test_depth_is_met_per_query_and_zero_skips_one():
    x = torch.randn(30, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    depth = torch.tensor([0, 3, 20] * 10)
    seen = []
    vectors = as_vectors(x, "x")
    for block in neighbours.ranked_blocks(vectors, vectors, depth, distance="cosine", exclude_self=True):
        assert block.indices.shape[1] >= int(depth[block.rows].max())
        seen += block.rows.tolist()
    assert sorted(seen) == [row for row in range(30) if depth[row] > 0]


@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
def test_copies_of_a_query_share_a_ranking_each_without_itself(monkeypatch, distance):
    which = np.random.default_rng(0).integers(0, 7, size=60)
    vectors = np.array(grid(2, 2, seed=0)[:7])[which]
    expected = [exact_order(v, vectors.tolist(), distance, left_out=i) for i, v in enumerate(vectors.tolist())]
    for budget in (neighbours.BLOCK_BYTES, 3 * 24 * 60):
        monkeypatch.setattr(neighbours, "BLOCK_BYTES", budget)
        for k in (1, 20, 59):
            indices, _ = nearest(vectors, k=k, distance=distance)
            assert indices.tolist() == [order[:k] for order in expected]


def test_gradients_are_not_kept():
    _, similarities = nearest(torch.randn(4, 3, requires_grad=True), k=2)
    assert not similarities.requires_grad


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"k": 0}, "k must be an integer of at least 1, got 0"),
        ({"k": 2.0}, "k must be an integer of at least 1, got 2.0"),
        ({"k": True}, "k must be an integer of at least 1, got True"),
        ({"k": 4}, "k must be at most 3, the rows each query can find, got 4"),
        ({"k": 1, "distance": "cosin"}, "unknown distance 'cosin': did you mean 'cosine'"),
        ({"k": 1, "gallery": torch.ones(2, 5)}, "gallery must have 3 columns like the queries, got 5"),
        ({"k": 1, "gallery": torch.ones(0, 3)}, r"gallery must have shape \[N, D\] .*, got \[0, 3\]"),
        ({"k": 1, "queries": torch.ones(3)}, r"queries must have shape \[N, D\] .*, got \[3\]"),
        ({"k": 1, "queries": torch.tensor([[1.0], [float("nan")]])}, "queries must be finite, .* 1 of 2 .* row 1"),
        ({"k": 1, "queries": np.array([["a"]])}, "queries must be an array of real numbers, got <U1"),
        ({"k": 1, "queries": torch.ones(2, 2, dtype=torch.bool)}, "queries must be .* real numbers, got torch.bool"),
    ],
)
def test_bad_input_is_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        nearest(**{"queries": torch.eye(4, 3), **arguments})


@pytest.mark.parametrize("collide", [False, True])
def test_copies_are_found_also_where_hashes_collide(monkeypatch, collide):
    if collide:
        monkeypatch.setattr(neighbours, "row_hashes", lambda rows: torch.zeros(len(rows), dtype=torch.int64))
    x = torch.tensor([[1.0, 2.0], [0.0, 5.0], [3.0, 1.0], [-0.0, 5.0], [1.0, 2.0]], dtype=torch.float64)
    rows, which = neighbours._distinct(x)
    assert len(rows) == 3
    assert torch.equal(rows[which], x)
    assert neighbours._distinct(x[:3])[1] is None
