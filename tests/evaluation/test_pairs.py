from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch

from nearkin.evaluation.pairs import metric_of, tree_sum, unit_rows
from nearkin.evaluation.vectors import as_vectors

ROWS = torch.arange(50)


def vectors(seed, dim=37):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(50, dim)))


def test_sums_add_halves_to_halves_in_any_width():
    for width in (1, 2, 3, 7, 64, 513):
        x = torch.from_numpy(np.random.default_rng(width).integers(-1000, 1000, size=(4, width)).astype(np.float64))
        assert torch.equal(tree_sum(x), x.sum(dim=1))
    x = torch.tensor([[1.0, 1e-16, 1e-16, -1.0]], dtype=torch.float64)
    assert float(tree_sum(x)) == (1.0 + 1e-16) + (1e-16 + -1.0)


def test_units_do_not_depend_on_which_rows_are_asked_for():
    x = vectors(0)
    assert torch.equal(unit_rows(x)[7:9], unit_rows(x[7:9]))
    assert torch.equal(unit_rows(8.0 * x), unit_rows(x))


@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
def test_codes_order_as_exact_arithmetic_does(distance):
    x, y = as_vectors(vectors(1), "x"), as_vectors(vectors(2), "y")
    metric = metric_of(distance, x, y)
    codes = metric.codes(torch.zeros(50, dtype=torch.int64), ROWS)

    def key(row):
        a, b = ([Fraction(v) for v in each.tolist()] for each in (x.source[0], y.source[row]))
        if distance == "euclidean":
            return sum((p - q) ** 2 for p, q in zip(a, b, strict=True))
        dot = sum(p * q for p, q in zip(a, b, strict=True))
        return -dot * abs(dot) / sum(q * q for q in b)

    assert codes.argsort().tolist() == sorted(range(50), key=key)


@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
def test_codes_of_a_pair_are_the_same_from_both_sides_and_in_any_company(distance):
    x = as_vectors(vectors(3), "x")
    metric = metric_of(distance, x, x)
    pairs = torch.cartesian_prod(ROWS, ROWS)
    codes = metric.codes(pairs[:, 0], pairs[:, 1]).view(50, 50)
    assert torch.equal(codes, codes.T)
    assert int(metric.codes(torch.tensor([3]), torch.tensor([41]))) == int(codes[3, 41])


@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
def test_products_are_within_the_error_that_is_stated(distance):
    x = as_vectors(vectors(4).float() * 3.0, "x")
    metric = metric_of(distance, x, x)
    scaled = metric.scale(x.rows(slice(None)))
    error = metric.error(scaled, scaled)
    exact = [
        [sum(Fraction(p) * Fraction(q) for p, q in zip(a, b, strict=True)) for b in scaled.tolist()]
        for a in scaled[:5].tolist()
    ]
    squares = [sum(Fraction(p) ** 2 for p in a) for a in scaled.tolist()]
    for i, row in enumerate(exact):
        for j, dot in enumerate(row):
            true = -dot if distance == "cosine" else squares[i] + squares[j] - 2 * dot
            assert abs(Fraction(float(metric.products(scaled, scaled)[i, j])) - true) <= Fraction(float(error[i]))


@pytest.mark.gpu
@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
def test_codes_on_cuda_are_those_of_the_cpu(distance):
    x = vectors(5, dim=512)
    pairs = torch.cartesian_prod(ROWS, ROWS)
    found = []
    for device in ("cpu", "cuda"):
        there = as_vectors(x.to(device), "x")
        found.append(metric_of(distance, there, there).codes(*pairs.to(device).T).cpu())
    assert torch.equal(*found)


@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
@pytest.mark.parametrize("longer", ["queries", "references"])
def test_the_stated_error_is_at_least_that_of_adding_up_in_any_order(distance, longer):
    # Of D products in float64, whatever their order: D · 2⁻⁵³ · ‖q‖ ‖r‖; a squared distance has three such sums.
    x, y = (as_vectors(vectors(seed) * (1000.0 if name == longer else 1.0), name) for seed, name in
            ((6, "queries"), (7, "references")))  # fmt: skip
    metric = metric_of(distance, x, y)
    queries, references = metric.scale(x.rows(slice(None))), metric.scale(y.rows(slice(None)))
    lengths, longest = queries.norm(dim=1), references.norm(dim=1).max()
    least = lengths * longest if distance == "cosine" else (lengths + longest) ** 2
    assert (metric.error(queries, references) >= 37 * 2.0**-53 * least).all()
