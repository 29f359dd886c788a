from __future__ import annotations

import numpy as np
import pytest
import torch

from nearkin.evaluation.ensemble import concatenate_embeddings, fold_combinations
from nearkin.evaluation.retrieval import retrieval_scores


def plain_scores(vectors, labels):
    """P@1, P@R and MAP@R by sorting all distances, query by query."""
    rows = []
    for query, vector in enumerate(vectors):
        others = np.array([row for row in range(len(vectors)) if row != query])
        order = others[np.argsort(((vectors[others] - vector) ** 2).sum(axis=1), kind="stable")]
        hits = labels[order] == labels[query]
        total = hits.sum()
        precision = np.cumsum(hits) / np.arange(1, len(hits) + 1)
        rows.append((hits[0], hits[:total].mean(), (precision * hits)[:total].sum() / total))
    return dict(zip(("P@1", "P@R", "MAP@R"), np.mean(rows, axis=0), strict=True))


@pytest.mark.parametrize("normalisation", ["l2", "ball"])
def test_side_by_side_against_plain_numpy(normalisation):
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(6), 5)
    parts = [rng.normal(size=(6, 3))[labels] + rng.normal(0, 0.9, (30, 3)) for _ in range(4)]
    if normalisation == "l2":
        expected = np.hstack([part / np.sqrt((part**2).sum(axis=1, keepdims=True)) for part in parts])
    else:
        expected = np.hstack(parts)
    joined = concatenate_embeddings([torch.from_numpy(part) for part in parts], normalisation=normalisation)
    assert joined.shape == (30, 12)
    assert np.allclose(joined.numpy(), expected)
    ours = retrieval_scores(
        joined,
        labels,
        recall_at=(),
        precision_at=(1,),
        distance="cosine" if normalisation == "l2" else "euclidean",
    )
    reference = plain_scores(expected, labels)
    assert {name: ours[name] for name in reference} == pytest.approx(reference)
    alone = plain_scores(parts[0], labels)
    assert reference["MAP@R"] > alone["MAP@R"], "four views of these classes tell more than one"


def test_a_long_embedding_does_not_outweigh_a_short_one():
    small, large = torch.tensor([[1e-3, 0.0]]), torch.tensor([[0.0, 500.0]])
    assert concatenate_embeddings([small, large]).tolist() == [[1.0, 0.0, 0.0, 1.0]]
    with pytest.raises(ValueError, match=r"same images, got \[1, 2\] rows"):
        concatenate_embeddings([small, torch.ones(2, 2)])


def test_all_combinations_or_some_of_them():
    assert fold_combinations(4, 1).tolist() == [[0, 0, 0, 0]]
    every = fold_combinations(4, 4)
    assert len(every) == 256 == len({tuple(row) for row in every.tolist()})
    drawn = fold_combinations(4, 10, seed=7)
    assert drawn.shape == (256, 4)
    assert len({tuple(row) for row in drawn.tolist()}) == 256
    assert (drawn.min(), drawn.max()) == (0, 9)
    assert np.array_equal(drawn, fold_combinations(4, 10, seed=7))
    assert not np.array_equal(drawn, fold_combinations(4, 10, seed=8))
