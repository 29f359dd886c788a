"""PCA-whitening against its definition."""

from __future__ import annotations

import numpy as np
import pytest

from nearkin.errors import DataError, RecipeError
from nearkin.evaluation.whitening import Axes, principal_axes


@pytest.fixture
def vectors():
    rng = np.random.default_rng(0)
    return (rng.normal(size=(400, 6)) @ rng.normal(size=(6, 6)) + rng.normal(size=6)).astype(np.float32)


def test_whitened_training_images_have_no_mean_and_the_unit_matrix_as_covariance(vectors):
    whitening = principal_axes(vectors).whitening()
    moved = (vectors - whitening.mean) @ whitening.matrix
    np.testing.assert_allclose(moved.mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(np.cov(moved.T, bias=True), np.eye(6), atol=1e-6)
    found = whitening(vectors)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, moved / np.linalg.norm(moved, axis=1, keepdims=True), atol=1e-6)


def test_cosines_of_whitened_vectors_are_those_by_the_inverse_covariance(vectors):
    """By the definition of Mahalanobis, without an eigenvector."""
    whitening = principal_axes(vectors).whitening()
    new = np.random.default_rng(1).normal(size=(20, 6))
    centred = new - vectors.mean(axis=0, dtype=np.float64)
    products = centred @ np.linalg.inv(np.cov(vectors.astype(np.float64).T, bias=True)) @ centred.T
    lengths = np.sqrt(np.diag(products))
    found = whitening(new)
    np.testing.assert_allclose(found @ found.T, products / np.outer(lengths, lengths), atol=1e-5)


def test_fewer_dimensions_are_the_axes_of_most_variance(vectors):
    axes = principal_axes(vectors)
    assert (np.diff(axes.variances) <= 0).all()
    whitening = axes.whitening(2)
    assert whitening.dim == 2
    np.testing.assert_allclose(whitening.matrix, axes.whitening().matrix[:, :2])
    centred = vectors - axes.mean
    left = centred - centred @ axes.directions[:, :2] @ axes.directions[:, :2].T
    np.testing.assert_allclose((left**2).sum(axis=1).mean(), axes.variances[2:].sum(), rtol=1e-5)


def test_shrinkage_goes_from_whitening_to_centring(vectors):
    axes = principal_axes(vectors)
    shrunk = np.linalg.norm(axes.whitening(shrinkage=0.25).matrix, axis=0)
    np.testing.assert_allclose(shrunk**-2, 0.75 * axes.variances + 0.25 * axes.variances.mean(), rtol=1e-6)
    centred = vectors - axes.mean
    found = axes.whitening(shrinkage=1.0)(vectors)
    centred /= np.linalg.norm(centred, axis=1, keepdims=True)
    np.testing.assert_allclose(found @ found.T, centred @ centred.T, atol=1e-5)


def test_axes_in_which_nothing_varies_are_left_out_and_cannot_be_asked_for(vectors):
    flat = np.concatenate([vectors, np.ones((400, 2), dtype=np.float32)], axis=1)
    axes = principal_axes(flat)
    assert axes.whitening().dim == 6
    assert axes.whitening(shrinkage=0.1).dim == 8
    with pytest.raises(
        RecipeError, match="between 1 and 6 dimensions, as the 400 training images vary in no more, got 7"
    ):
        axes.whitening(7)
    with pytest.raises(RecipeError, match="shrinkage must be between 0 and 1, got 2"):
        axes.whitening(shrinkage=2)
    with pytest.raises(DataError, match="all the same"):
        principal_axes(flat[:1].repeat(3, axis=0)).whitening()
    with pytest.raises(DataError, match="at least two training images"):
        principal_axes(flat[:1])


def test_axes_are_the_same_after_they_were_written(vectors, tmp_path):
    axes = principal_axes(vectors)
    (tmp_path / "axes.npz").write_bytes(axes.to_bytes())
    again = Axes.read(tmp_path / "axes.npz")
    assert again.images == 400
    np.testing.assert_array_equal(again.whitening(3, shrinkage=0.1)(vectors), axes.whitening(3, shrinkage=0.1)(vectors))


def test_a_vector_at_the_mean_stays_a_vector(vectors):
    axes = principal_axes(vectors)
    found = axes.whitening()(np.stack([axes.mean, axes.mean + axes.directions[:, 0]]))
    assert np.isfinite(found).all()
    np.testing.assert_allclose(np.linalg.norm(found[1]), 1, rtol=1e-6)
