import math

import pytest
import torch

from nearkin.evaluation import measure, neighbours
from nearkin.evaluation.scores import score_named

BOTH = ("covering_radius", "inter_class_distance")


def slow(points, labels):
    """Section 3 of the methods page, one class and one centre at a time."""
    per_class = []
    for label in sorted(set(labels)):
        own = [p for p, owner in zip(points, labels, strict=True) if owner == label]
        mean = torch.stack(own).mean(0)
        centres = [min(range(len(own)), key=lambda i: float((own[i] - mean).norm()))]
        radii = []
        while True:
            far = [min(float((p - own[c]).norm()) for c in centres) for p in own]
            radii.append(max(far))
            if len(centres) == len(own):
                break
            centres.append(far.index(max(far)))
        per_class.append(sum(radii) / len(radii))
    apart = [
        float((points[i] - points[j]).norm())
        for i in range(len(points))
        for j in range(len(points))
        if labels[i] != labels[j]
    ]
    return sum(per_class) / len(per_class), sum(apart) / len(apart)


def test_by_hand():
    # class 0 on a line at 0, 1, 5, 6 (mean 3: 1 and 5 are as near, the first is taken):
    # k=1 centre 1: radius 5; k=2 adds 6: radius 1 (0 from 1, 5 from 6); k=3 adds 0: 1; k=4: 0. Mean 7/4.
    # class 1 is a single point: 0. Between them: 10, 9, 5, 4.
    scores = measure(BOTH, torch.tensor([[0.0], [1.0], [5.0], [6.0], [10.0]]), [3, 3, 3, 3, 8])
    assert scores["covering_radius"] == pytest.approx(7 / 8)
    for name in BOTH:
        assert not score_named(name).in_percent
    assert not score_named("covering_radius").higher_is_better
    assert scores["inter_class_distance"] == pytest.approx(7.0)


@pytest.mark.parametrize("seed", range(5))
def test_equals_the_slow_version(seed):
    torch.manual_seed(seed)
    labels = torch.randint(0, 5, (24,)).tolist()
    points = torch.randn(24, 3, dtype=torch.float64)
    radius, distance = slow(list(points), labels)
    scores = measure(BOTH, points, labels)
    assert scores["covering_radius"] == pytest.approx(radius, abs=1e-12)
    assert scores["inter_class_distance"] == pytest.approx(distance, abs=1e-6)


def test_blocks_do_not_matter(monkeypatch):
    points, labels = torch.randn(30, 4), torch.arange(30) % 4
    whole = measure(BOTH, points, labels)
    monkeypatch.setattr(neighbours, "BLOCK_BYTES", 16 * 30 * 7)
    assert measure(BOTH, points, labels) == pytest.approx(whole)


def test_edges():
    assert measure(BOTH, torch.zeros(3, 2), [1, 1, 1])["covering_radius"] == 0.0
    assert math.isnan(measure(BOTH, torch.zeros(3, 2), [1, 1, 1])["inter_class_distance"])
    with pytest.raises(ValueError, match="labels"):
        measure(BOTH, torch.zeros(3, 2), [1, 1])
    with pytest.raises(ValueError, match="embeddings"):
        measure(BOTH, torch.full((3, 2), float("nan")), [1, 1, 1])


def test_a_distance_is_shown_as_it_is_with_three_decimals():
    for name in BOTH:
        assert score_named(name).text(0.12345, 0.0119) == "0.123 ± 0.012"
