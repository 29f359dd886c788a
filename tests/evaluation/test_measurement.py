from __future__ import annotations

import numpy as np
import pytest
import torch

from nearkin.errors import RecipeError
from nearkin.evaluation import clustering_scores, retrieval, retrieval_scores
from nearkin.evaluation.retrieval import concatenate_embeddings, measure


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


@pytest.fixture
def data():
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(30) % 5
    return torch.eye(5)[labels] + 0.4 * torch.randn(30, 5, generator=generator), labels


def test_every_kind_by_name_as_its_own_function_has_it(data):
    embeddings, labels = data
    found = measure(["NMI", "R@1", "covering_radius", "MAP@R", "R@1"], embeddings, labels)
    assert set(found) == {"R@1", "MAP@R", "queries_without_match", "covering_radius", "NMI"}
    ranked = retrieval_scores(embeddings, labels, scores=["R@1", "MAP@R"])
    assert {name: found[name] for name in ("R@1", "MAP@R")} == {name: ranked[name] for name in ("R@1", "MAP@R")}
    assert found["NMI"] == clustering_scores(embeddings, labels)["NMI"]
    assert found["covering_radius"] > 0


def test_scores_of_a_kind_share_one_pass_and_others_take_none(data, monkeypatch):
    passes = []
    for name in ("retrieval_scores", "clustering_scores"):
        genuine = getattr(retrieval, name)

        def counted(*arguments, name=name, genuine=genuine, **options):
            passes.append(name)
            return genuine(*arguments, **options)

        monkeypatch.setattr(retrieval, name, counted)
    measure(["R@1", "P@R", "MRR@3"], *data)
    assert passes == ["retrieval_scores"]
    measure(["NMI", "F1"], *data)
    assert passes == ["retrieval_scores", "clustering_scores"]


def test_rankings_are_of_the_gallery_and_the_rest_is_not(data):
    embeddings, labels = data
    found = measure(["R@1", "covering_radius"], embeddings, labels, 3 * embeddings[:9].flip(1), labels[:9])
    alone = measure(["R@1", "covering_radius"], embeddings, labels)
    assert found["R@1"] != alone["R@1"]
    assert found["covering_radius"] == alone["covering_radius"]


def test_an_unknown_name_is_refused_before_anything_is_computed():
    with pytest.raises(RecipeError, match="unknown score 'R@'"):
        measure(["R@1", "R@"], None, None)


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
        scores=["P@1", "P@R", "MAP@R"],
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
