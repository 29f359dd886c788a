from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
from sklearn.cluster import KMeans
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from nearkin.evaluation import (
    clustering,
    clustering_scores,
    kmeans,
    neighbours,
    normalised_mutual_information,
    pairwise_f1,
)


class LargestTensor(TorchDispatchMode):
    """Remembers the size of the largest tensor that any operation returned."""

    bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                self.bytes = max(self.bytes, leaf.numel() * leaf.element_size())
        return out


def blobs(classes, per_class, dim, *, seed, spread):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(classes).repeat_interleave(per_class)
    centres = torch.randn(classes, dim, generator=generator)
    return centres[labels] + spread * torch.randn(len(labels), dim, generator=generator), labels


def inertia(points, assigned):
    groups = [points[assigned == cluster] for cluster in assigned.unique()]
    return sum(float((group - group.mean(dim=0)).square().sum()) for group in groups)


def test_scores_do_not_depend_on_the_names_of_the_groups():
    clusters, labels = [0, 0, 1, 1, 2], [0, 1, 1, 1, 0]
    renamed = np.array([2**62, 2**62, -5, -5, 7]), torch.tensor([3, -(2**62), -(2**62), -(2**62), 3])
    assert pairwise_f1(*renamed) == pairwise_f1(clusters, labels)
    assert normalised_mutual_information(*renamed) == pytest.approx(normalised_mutual_information(clusters, labels))


def test_one_group_against_one_or_many():
    assert normalised_mutual_information([1, 1, 1], [4, 4, 4]) == 1.0
    assert normalised_mutual_information([1, 1, 1], [4, 5, 6]) == 0.0
    assert pairwise_f1([1, 2, 3], [4, 5, 6]) == 1.0
    assert pairwise_f1([1, 1, 1], [4, 5, 6]) == 0.0


def test_thousands_of_classes_make_no_dense_table():
    labels = torch.arange(60_000) // 5
    with LargestTensor() as seen:
        assert normalised_mutual_information(labels, labels) == pytest.approx(1.0)
        assert pairwise_f1(labels, labels) == 1.0
    assert seen.bytes <= 8 * 60_000


def test_nmi_of_the_same_clusters_agrees_with_pytorch_metric_learning():
    embeddings, labels = blobs(8, 12, 6, seed=0, spread=0.8)
    unit = torch.nn.functional.normalize(embeddings, dim=1)
    peer = AccuracyCalculator(
        include=("NMI",),
        knn_func=lambda *_: None,
        device=torch.device("cpu"),
        kmeans_func=lambda x, nmb_clusters: kmeans(x, nmb_clusters, seed=5),
    )
    theirs = peer.get_accuracy(unit, labels)["NMI"]
    assert 0.3 < theirs < 0.99
    assert clustering_scores(embeddings, labels, seed=5)["NMI"] == pytest.approx(theirs, abs=1e-9)


def test_separate_blobs_are_found():
    embeddings, labels = blobs(30, 10, 16, seed=1, spread=0.05)
    assert clustering_scores(embeddings, labels) == pytest.approx({"NMI": 1.0, "F1": 1.0})
    assert clustering_scores(embeddings.numpy(), labels.tolist(), 7) == pytest.approx({"NMI": 1.0, "F1": 1.0})


def test_cosine_ignores_lengths_and_euclidean_does_not():
    generator = torch.Generator().manual_seed(0)
    angle = torch.cat([torch.zeros(20), torch.full((20,), 1.5)]) + 0.02 * torch.randn(40, generator=generator)
    length = torch.tensor([1.0, 50.0]).repeat(20)
    embeddings = length[:, None] * torch.stack([angle.cos(), angle.sin()], dim=1)
    by_angle = torch.arange(40) // 20
    assert clustering_scores(embeddings, by_angle)["NMI"] == pytest.approx(1.0)
    assert clustering_scores(embeddings, by_angle, distance="euclidean")["NMI"] < 0.6


def test_kmeans_is_as_tight_as_scikit_learns():
    points, _ = blobs(20, 25, 8, seed=2, spread=0.7)
    peer = KMeans(20, n_init=3, random_state=0).fit(points.numpy())
    assert inertia(points, kmeans(points, 20)) <= 1.03 * peer.inertia_


def test_kmeans_ends_where_every_point_is_nearest_to_its_own_mean():
    points, _ = blobs(6, 30, 3, seed=3, spread=0.5)
    assigned = kmeans(points, 6)
    means = torch.stack([points[assigned == cluster].mean(dim=0) for cluster in range(6)])
    nearest = torch.cdist(points, means).argmin(dim=1)
    # A run may also end when hardly anything moves any more.
    assert float((nearest == assigned).double().mean()) > 0.98


def test_more_restarts_are_never_looser():
    points, _ = blobs(25, 8, 4, seed=4, spread=0.6)
    tightness = [inertia(points, kmeans(points, 25, restarts=restarts)) for restarts in (1, 2, 4, 8)]
    assert tightness == sorted(tightness, reverse=True)
    assert tightness[-1] < tightness[0]


def test_the_same_seed_repeats_and_another_may_not():
    points, _ = blobs(25, 8, 4, seed=4, spread=1.0)
    assert torch.equal(kmeans(points, 25, seed=3, restarts=1), kmeans(points, 25, seed=3, restarts=1))
    assert not torch.equal(kmeans(points, 25, seed=3, restarts=1), kmeans(points, 25, seed=4, restarts=1))


def test_global_random_state_is_left_alone():
    state = torch.get_rng_state()
    kmeans(torch.rand(10, 2, generator=torch.Generator().manual_seed(0)), 3)
    assert torch.equal(state, torch.get_rng_state())


def test_every_cluster_is_used_when_there_are_points_enough():
    # A crowd on one spot and a few others.
    points = torch.cat([torch.zeros(500, 2), torch.arange(1.0, 10.0)[:, None].repeat(1, 2)])
    assigned = kmeans(points, 10, restarts=1)
    assert len(assigned.unique()) == 10
    assert inertia(points, assigned) == pytest.approx(0.0, abs=1e-9)


def test_empty_clusters_start_again_far_from_the_others():
    points = torch.tensor([[0.0], [0.1], [5.0], [5.2], [9.0]], dtype=torch.float64)
    sum_of_squares, assigned = clustering._lloyd(points, torch.zeros(3, 1, dtype=torch.float64), 20)
    assert sorted(torch.bincount(assigned, minlength=3).tolist()) == [1, 2, 2]
    assert sum_of_squares == pytest.approx(0.1**2 / 2 + 0.2**2 / 2)


@pytest.mark.parametrize("value", [0.0, 0.1])
def test_fewer_different_points_than_clusters(value):
    assigned = kmeans(torch.full((7, 3), value), 4)
    assert assigned.shape == (7,)
    assert 0 <= int(assigned.min()) <= int(assigned.max()) < 4


def test_magnitude_and_offset_do_not_matter():
    points, _ = blobs(10, 10, 4, seed=5, spread=0.3)
    points = points.double()
    expected = kmeans(points, 10)
    assert torch.equal(kmeans(points * 2.0**900, 10), expected)
    assert pairwise_f1(kmeans(points + 1e8, 10), expected) == pytest.approx(1.0)


def test_blocks_bound_memory_and_do_not_change_the_clusters(monkeypatch):
    points, _ = blobs(400, 3, 4, seed=6, spread=0.01)
    whole = kmeans(points, 400, restarts=1)
    monkeypatch.setattr(neighbours, "BLOCK_BYTES", 256 * 2**10)
    with LargestTensor() as seen:
        in_blocks = kmeans(points, 400, restarts=1)
    assert torch.equal(in_blocks, whole)
    assert seen.bytes <= 256 * 2**10 < 8 * 400 * len(points)


@pytest.mark.gpu
def test_cuda_repeats_and_agrees_with_the_cpu():
    embeddings, labels = blobs(50, 20, 16, seed=7, spread=0.2)
    first = clustering_scores(embeddings.cuda(), labels)
    assert clustering_scores(embeddings.cuda(), labels.cuda()) == first
    assert first == pytest.approx(clustering_scores(embeddings, labels), abs=0.02)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: kmeans(torch.ones(3, 2), 4), "clusters must be at most the number of points, 3, got 4"),
        (lambda: kmeans(torch.ones(3, 2), 0), "clusters must be an integer of at least 1, got 0"),
        (lambda: kmeans(torch.ones(3, 2), 1, restarts=0), "restarts must be an integer of at least 1, got 0"),
        (lambda: kmeans(torch.tensor([[float("inf")]]), 1), "points must be finite"),
        (lambda: clustering_scores(torch.ones(3, 2), [1, 2]), r"labels must have shape \[3\], got \[2\]"),
        (lambda: clustering_scores(torch.tensor([[float("nan")]]), [1]), "embeddings must be finite"),
        (lambda: clustering_scores(torch.ones(0, 2), []), r"embeddings must have shape .* got \[0, 2\]"),
        (lambda: clustering_scores(torch.ones(2, 2), [0, 1], distance="l1"), "unknown distance 'l1'"),
        (lambda: pairwise_f1([0, 1], [0]), r"labels must have shape \[2\], got \[1\]"),
        (lambda: pairwise_f1(["a"], [0]), "clusters must be integers, got <U1"),
        (lambda: normalised_mutual_information([], []), "clusters must hold at least one value, got none"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_iterations_end_with_a_gain_that_is_too_small_to_matter(monkeypatch):
    points, _ = blobs(6, 40, 4, seed=0, spread=1.5)
    points, start = points.double(), points[:6].double()
    by_step = [clustering._lloyd(points, start, steps) for steps in range(1, 8)]
    gains = [before / after - 1 for (before, _), (after, _) in itertools.pairwise(by_step)]
    assert min(gains[:3]) > gains[3] > gains[4] > 0, "or it ends because nothing changes"
    monkeypatch.setattr(clustering, "_LEAST_GAIN", 0.5 * (gains[3] + min(gains[:3])))
    ended, assigned = clustering._lloyd(points, start, 100)
    assert ended == by_step[4][0], "the first whose gain is below it"
    assert torch.equal(assigned, by_step[4][1])
