"""Rankings against exact arithmetic and against the definition, by every way to compute products."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nearkin.evaluation import nearest, neighbours
from nearkin.evaluation.neighbours import Coded, propose, tree_sum, unit_rows
from nearkin.evaluation.vectors import Vectors, as_vectors

DISTANCES = ["cosine", "euclidean"]


@pytest.fixture(params=["int8", "float32", "no torch"])
def scan(request, monkeypatch):
    """Every way to propose neighbours, in blocks so small that all of them are in use."""
    if request.param == "int8" and not neighbours.in_8_bits(16):
        pytest.skip("this processor's 8-bit products lose bits, so the scan is in float32 here")
    if request.param != "int8":
        monkeypatch.setattr(neighbours, "in_8_bits", lambda dim: False)
    if request.param == "no torch":
        monkeypatch.setattr(neighbours, "torch", None)
    for name, value in (("_QUERIES", 16), ("_TILE", 32), ("_SAMPLE", 64)):
        monkeypatch.setattr(neighbours, name, value)
    return request.param


def exact_order(query, gallery, distance, left_out=None):
    """Gallery rows of integers by distance and then index, in exact arithmetic."""

    def key(row):
        if distance == "euclidean":
            return sum((a - b) ** 2 for a, b in zip(query, row, strict=True))
        dot = sum(a * b for a, b in zip(query, row, strict=True))
        # The sign of the cosine times its square times ‖query‖², which orders like the cosine.
        return -Fraction(dot * abs(dot), sum(b * b for b in row) or 1)

    return sorted((j for j in range(len(gallery)) if j != left_out), key=lambda j: (key(gallery[j]), j))


def by_definition(queries, gallery, distance, *, without_self):
    """All pairs by the definition: float64 in a fixed order, 44 bits, ties by index."""
    dim = queries.shape[1]
    if distance == "cosine":
        pairs = unit_rows(queries)[:, None] * unit_rows(gallery)[None]
        keys = np.round(tree_sum(pairs.reshape(-1, dim)) * -(2.0**44))
    else:
        squared = tree_sum(np.square(queries[:, None] - gallery[None]).reshape(-1, dim))
        keys = ((squared.view(np.int64) + 128) >> 8).astype(np.float64)
    keys = keys.reshape(len(queries), len(gallery))
    if without_self:
        keys[np.arange(len(keys)), np.arange(len(keys))] = np.inf
    return np.stack([np.lexsort((np.arange(len(gallery)), row)) for row in keys])


def grid(reach, dim, seed):
    vectors = list(itertools.product(range(-reach, reach + 1), repeat=dim))
    order = np.random.default_rng(seed).permutation(len(vectors))
    return [vectors[i] for i in order]


@pytest.mark.parametrize("distance", DISTANCES)
def test_order_on_a_grid_full_of_ties_is_that_of_exact_arithmetic(scan, distance):
    vectors = grid(2, 3, seed=0)
    indices, _ = nearest(np.array(vectors, dtype=np.float32), k=len(vectors) - 1, distance=distance)
    expected = [exact_order(vector, vectors, distance, left_out=i) for i, vector in enumerate(vectors)]
    assert indices.tolist() == expected


coordinate = st.integers(-2, 2)
vectors_of_three = st.lists(st.tuples(coordinate, coordinate, coordinate), min_size=1, max_size=12)


@settings(max_examples=40, deadline=None)
@given(vectors_of_three, vectors_of_three, st.sampled_from(DISTANCES), st.data())
def test_gallery_order_matches_exact_arithmetic(queries, gallery, distance, data):
    k = data.draw(st.integers(1, len(gallery)))
    indices, _ = nearest(np.array(queries, dtype=np.float64), np.array(gallery), k=k, distance=distance)
    assert indices.tolist() == [exact_order(query, gallery, distance)[:k] for query in queries]


@pytest.mark.parametrize("distance", DISTANCES)
@pytest.mark.parametrize("k", [1, 7, 150, 299])
def test_random_vectors_with_copies_are_ranked_by_the_definition(scan, distance, k):
    rng = np.random.default_rng(k)
    x = rng.normal(size=(300, 16))
    x[200:250], x[250:] = x[:50], x[7]
    y = rng.normal(size=(310, 16))
    y[300:] = x[:10] * (1.0 + 1e-15)  # closer than any product can tell
    indices, _ = nearest(x, k=k, distance=distance)
    assert np.array_equal(indices, by_definition(x, x, distance, without_self=True)[:, :k])
    indices, _ = nearest(x, y, k=k, distance=distance)
    assert np.array_equal(indices, by_definition(x, y, distance, without_self=False)[:, :k])


@pytest.mark.parametrize("distance", DISTANCES)
def test_guesses_that_were_too_high_are_made_good(scan, distance, monkeypatch):
    monkeypatch.setattr(neighbours, "_SAFETY", (-10.0,))  # rather the first of the sample than the k-th of all
    x = np.random.default_rng(0).normal(size=(200, 16))
    indices, _ = nearest(x, k=30, distance=distance)
    assert np.array_equal(indices, by_definition(x, x, distance, without_self=True)[:, :30])


@pytest.mark.parametrize("distance", DISTANCES)
@pytest.mark.parametrize("dim", [1, 7, 513])
def test_fast_products_are_within_their_error(scan, distance, dim):
    rng = np.random.default_rng(dim)
    x, y = (rng.normal(size=(n, dim)) * 10.0 ** rng.uniform(-6, 3, (n, 1)) for n in (20, 200))
    y[::5, 0] *= 1e4
    y[3] = 0
    y = y.astype(np.float32).astype(np.float64)
    products, error = Coded.of(x).products(Coded.of(y), distance)
    true = x @ y.T - (0.5 * np.square(y).sum(axis=1) if distance == "euclidean" else 0.0)
    assert (np.abs(products - true) <= error).all()


def test_few_references_are_proposed_where_few_are_near(scan):
    x = unit_rows(np.random.default_rng(0).normal(size=(4000, 64)))
    coded = Coded.of(x)
    tiles = [coded[start : start + 1000] for start in range(0, 4000, 1000)]
    proposed, settled = propose(coded[:8], tiles, coded[::4], 10, "cosine")
    assert settled.all()
    assert sum(8 * len(columns) + len(where) for columns, where in proposed) < 8 * 150


def test_the_definition_is_the_same_in_any_company():
    x = np.random.default_rng(0).normal(size=(50, 37))
    assert np.array_equal(unit_rows(x)[7:9], unit_rows(x[7:9]))
    assert np.array_equal(unit_rows(8.0 * x), unit_rows(x))
    for width in (1, 2, 3, 7, 64, 513):
        whole = np.random.default_rng(width).integers(-1000, 1000, size=(4, width)).astype(np.float64)
        assert np.array_equal(tree_sum(whole), whole.sum(axis=1))
    assert tree_sum(np.array([[1.0, 1e-16, 1e-16, -1.0]]))[0] == (1.0 + 1e-16) + (1e-16 + -1.0)


def test_similarities_are_cosines_or_negative_distances():
    rng = np.random.default_rng(3)
    queries, gallery = rng.normal(size=(7, 5)), rng.normal(size=(11, 5))
    cosines = (queries @ gallery.T) / np.outer(np.linalg.norm(queries, axis=1), np.linalg.norm(gallery, axis=1))
    distances = np.linalg.norm(queries[:, None] - gallery[None], axis=-1)
    for distance, expected in (("cosine", cosines), ("euclidean", -distances)):
        indices, similarities = nearest(queries, gallery, k=11, distance=distance)
        assert indices.tolist() == np.argsort(-expected, axis=1, kind="stable").tolist()
        np.testing.assert_allclose(similarities, -np.sort(-expected, axis=1), rtol=1e-11, atol=1e-13)


def test_tensors_give_tensors_without_gradients():
    x = torch.randn(6, 3, generator=torch.Generator().manual_seed(0)).requires_grad_()
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        indices, similarities = nearest(x.to(dtype), k=2)
        assert (indices.dtype, similarities.dtype, similarities.requires_grad) == (torch.int64, torch.float64, False)
        expected, _ = nearest(x.to(dtype).detach().double().numpy(), k=2)
        assert indices.tolist() == expected.tolist()


def test_the_query_is_left_out_by_index_even_when_its_copies_are_in_front():
    indices, similarities = nearest(np.ones((4, 3)), k=3)
    assert indices.tolist() == [[1, 2, 3], [0, 2, 3], [0, 1, 3], [0, 1, 2]]
    assert similarities.tolist() == [[1.0] * 3] * 4


def test_exclude_self_can_be_switched_either_way():
    x = np.eye(3)
    assert nearest(x, k=1, exclude_self=False)[0].tolist() == [[0], [1], [2]]
    assert nearest(x, x, k=1)[0].tolist() == [[0], [1], [2]]
    assert nearest(x, x, k=1, exclude_self=True)[0].tolist() == [[1], [0], [0]]
    with pytest.raises(ValueError, match="got 2"):
        nearest(x, x[:2], k=1, exclude_self=True)


def test_multiples_of_a_vector_tie_under_cosine():
    vector = np.array([0.1, -0.7, 0.3])
    scales = np.array([4.0, 1.0, 0.5, 2.0, 1024.0])
    indices, similarities = nearest(vector[None] + [[0.0, 0.2, 0.0]], scales[:, None] * vector, k=5)
    assert indices.tolist() == [[0, 1, 2, 3, 4]]
    assert len(set(similarities[0].tolist())) == 1


def test_outliers_do_not_blur_the_near_ones():
    gallery = np.array([[1e9], [1.003], [1.002], [1.001], [-1e9]])
    indices, _ = nearest(np.array([[1.0]]), gallery, k=5, distance="euclidean")
    assert indices.tolist() == [[3, 2, 1, 0, 4]]


@pytest.mark.parametrize("magnitude", [1e-300, 1e300])
@pytest.mark.parametrize("distance", DISTANCES)
def test_extreme_magnitudes_neither_overflow_nor_vanish(magnitude, distance):
    x = np.array([[1.0, 0.0], [0.0, 1.0], [0.8, 0.3]]) * magnitude
    indices, similarities = nearest(x, k=2, distance=distance)
    assert indices.tolist() == [[2, 1], [2, 0], [0, 1]]
    expected = 0.8 / math.hypot(0.8, 0.3) if distance == "cosine" else -math.hypot(0.2, 0.3) * magnitude
    assert float(similarities[0, 0]) == pytest.approx(expected)


def test_zero_vectors_have_cosine_zero():
    indices, similarities = nearest(np.zeros((1, 2)), np.array([[1.0, 0.0], [0.0, 0.0], [-1.0, 0.0]]), k=3)
    assert indices.tolist() == [[0, 1, 2]]
    assert str(similarities.tolist()) == "[[0.0, 0.0, 0.0]]"


def test_depth_is_met_per_query_and_zero_skips_one():
    x = as_vectors(np.random.default_rng(1).normal(size=(30, 4)), "x")
    depth, seen = np.array([0, 3, 20] * 10), []

    def found(rows, indices, similarities):
        assert indices.shape == similarities.shape
        assert indices.shape[1] >= depth[rows].max()
        seen.extend(rows.tolist())

    neighbours.rank(x, x, depth, found, distance="cosine", exclude_self=True)
    assert sorted(seen) == [row for row in range(30) if depth[row] > 0]


def test_different_rows_with_one_hash_are_told_apart(monkeypatch):
    monkeypatch.setattr(neighbours, "_hashes", lambda x: np.zeros(len(x), dtype=np.int64))
    x = np.random.default_rng(0).normal(size=(40, 5))
    x[20:] = x[:20]
    assert np.array_equal(nearest(x, k=39)[0], by_definition(x, x, "cosine", without_self=True)[:, :39])


def test_progress_ends_with_all_queries():
    done = []
    nearest(np.random.default_rng(0).normal(size=(30, 4)), k=2, progress=done.append)
    assert done[-1] == 30


@pytest.mark.parametrize(
    "arguments, offending",
    [
        ({"k": 0}, "got 0"),
        ({"k": 2.0}, "got 2.0"),
        ({"k": True}, "got True"),
        ({"k": 4}, "got 4"),
        ({"k": 1, "distance": "cosin"}, "'cosin'"),
        ({"k": 1, "gallery": torch.ones(2, 5)}, "got 5"),
        ({"k": 1, "gallery": torch.ones(0, 3)}, r"got \[0, 3\]"),
        ({"k": 1, "queries": torch.ones(3)}, r"got \[3\]"),
        ({"k": 1, "queries": torch.tensor([[1.0], [float("nan")]])}, "row 1 of 2"),
        ({"k": 1, "queries": np.array([["a"]])}, "got <U1"),
        ({"k": 1, "queries": torch.ones(2, 2, dtype=torch.bool)}, "torch.bool"),
    ],
)
def test_bad_input_is_named(arguments, offending):
    with pytest.raises(ValueError, match=offending):
        nearest(**{"queries": torch.eye(4, 3), **arguments})


@pytest.mark.parametrize("distance", DISTANCES)
@pytest.mark.parametrize("k", [1, 20, 299])
@pytest.mark.parametrize("apart", [1.0, 5e-4, 1e-30], ids=["far", "equal in float32", "too small for float32"])
def test_what_runs_on_a_gpu_gives_the_same_ranking_on_a_cpu(distance, k, apart, monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2**21, 2**21))  # several blocks
    x = apart * torch.randn(300, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x[200:250], x[250:] = x[:50], x[7]
    if apart == 5e-4:
        x += torch.arange(16)
    vectors, indices = Vectors(x), np.empty((300, k), dtype=np.int64)

    def found(rows, order, similarities):
        indices[rows] = order[:, :k]

    neighbours.rank(vectors, vectors, np.full(300, k), found, distance=distance, exclude_self=True)
    exact = x.double().numpy()
    assert np.array_equal(indices, by_definition(exact, exact, distance, without_self=True)[:, :k])


@pytest.mark.parametrize("distance", DISTANCES)
def test_on_a_gpu_everything_is_compared_where_more_are_tied_than_were_kept(distance, monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2**21, 2**21))
    x = 1e-9 * torch.randn(300, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x[:, 0] += 1.0  # nearly one direction: the last bits of products say nothing
    vectors, indices = Vectors(x), np.empty((300, 2), dtype=np.int64)

    def found(rows, order, similarities):
        indices[rows] = order[:, :2]

    neighbours.rank(vectors, vectors, np.full(300, 2), found, distance=distance, exclude_self=True)
    assert np.array_equal(indices, by_definition(x.numpy(), x.numpy(), distance, without_self=True)[:, :2])


@pytest.mark.parametrize(("columns", "count"), [(1000, 5), (1000, 7), (1003, 60), (50, 50), (64, 1)])
def test_the_largest_of_every_row_are_found_in_groups(columns, count):
    x = torch.randn(6, columns, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x[:, -1] = 9.0  # outside of the groups, where they leave some over
    x[1, ::3] = 8.0  # more equal ones than are wanted
    values, where = neighbours._largest(x, count)
    assert torch.equal(values, x.sort(dim=1, descending=True).values[:, :count])
    assert torch.equal(values, x.gather(1, where))
    assert all(len(set(row)) == count for row in where.tolist())


@pytest.mark.parametrize("distance", DISTANCES)
def test_equal_neighbours_of_different_rows_are_ordered_by_index(distance):
    # Rows 1 and 4 are copies, rows 2 and 3 are others, all equally far from row 0.
    x = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, -1.0], [0.0, 1.0, 0.0], [0.0, -1.0, 0.0]]
    assert neighbours.nearest(x, k=5, distance=distance)[0][0].tolist() == [1, 2, 3, 4, 5]


@pytest.mark.gpu
@pytest.mark.parametrize("distance", DISTANCES)
@pytest.mark.parametrize("k", [1, 20, 299])
def test_a_gpu_gives_the_same_ranking(distance, k):
    x = torch.randn(300, 16, generator=torch.Generator().manual_seed(0))
    x[200:250], x[250:] = x[:50], x[7]
    indices, _ = nearest(x.cuda(), k=k, distance=distance)
    assert indices.is_cuda
    assert np.array_equal(
        indices.cpu(), by_definition(x.double().numpy(), x.double().numpy(), distance, without_self=True)[:, :k]
    )
