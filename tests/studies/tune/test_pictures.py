"""What the pictures of a search show: the right cells and dots, and a surface near the truth where there can be one."""

from __future__ import annotations

import sys
import warnings

import numpy as np
import pytest

from nearkin.studies.tune.pictures import _plane, fit_surface


def test_a_grid_has_a_cell_for_every_pair_of_values(made_up):
    lists = ("method.proximal_weight=0,1e-4,1e-2", "method.proxies_per_class=1,2")
    points = [(pull, count) for pull in (0.0, 1e-4, 1e-2) for count in (1, 2)][:5]
    grid = made_up([("finished", 0.1 * n, *point) for n, point in enumerate(points, 1)], lists, sampler="grid")
    (cells,) = _plane(grid).axes[0].collections
    np.testing.assert_allclose(cells.get_array().filled(np.nan), [[10, 30, 50], [20, 40, np.nan]])
    whole = ("training.epochs=15..17", "method.proxies_per_class=1..4")
    ints = made_up([("finished", 0.3, 16, 2)], whole, sampler="grid")
    axis = _plane(ints).axes[0]
    assert (axis.get_xlim(), axis.get_ylim()) == ((14.5, 17.5), (0.5, 4.5)), "whole cells"


def test_dots_lie_on_a_surface_where_scikit_learn_is_and_say_why_not_where_it_is_not(many, monkeypatch):
    with_surface = _plane(many).axes[0]
    assert with_surface.get_title().startswith("surface: a Gaussian process")
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.setitem(sys.modules, "sklearn.gaussian_process", None)
    without = _plane(many).axes[0]
    assert "pip install 'nearkin[plot]'" in without.get_title().replace("\n", " ")
    for axis in (with_surface, without):
        assert axis.collections[-1].get_array().max() == pytest.approx(100 * many.ranking[0].score)
    assert len(without.collections) == 1 < len(with_surface.collections)


def test_the_surface_is_nearer_the_truth_than_the_noise_is():
    def truth(where):
        return 50 - 40 * (where[:, 0] - 0.3) ** 2 - 10 * (where[:, 1] - 0.6) ** 2

    def off(fitted):
        return np.sqrt(np.mean((fitted - truth(at)) ** 2))

    exact, noisy = [], []
    for seed in range(8):
        rng = np.random.default_rng(seed)
        points, at = rng.uniform(0, 1, (40, 2)), rng.uniform(0.1, 0.9, (200, 2))
        exact.append(off(fit_surface(points, truth(points), at)) / np.ptp(truth(at)))
        noisy.append(off(fit_surface(points, truth(points) + rng.normal(0, 2, 40), at)))
    assert max(exact) < 0.02, "without noise, as a share of the truth's range"
    assert np.mean(noisy) < 1.5, "of noise with a deviation of 2"


def test_equal_scores_make_a_flat_surface_without_complaints():
    points = np.random.default_rng(0).uniform(0, 1, (9, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fit_surface(points, np.full(9, 7.0), points) == pytest.approx(7.0)
