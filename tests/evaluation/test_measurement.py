from __future__ import annotations

import pytest
import torch

from nearkin.errors import RecipeError
from nearkin.evaluation import clustering_scores, measurement, retrieval_scores
from nearkin.evaluation.measurement import measure


@pytest.fixture
def data():
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(30) % 5
    return torch.eye(5)[labels] + 0.4 * torch.randn(30, 5, generator=generator), labels


def test_every_kind_by_name_as_its_own_function_has_it(data):
    embeddings, labels = data
    found = measure(["NMI", "R@1", "covering_radius", "MAP@R", "R@1"], embeddings, labels)
    assert set(found) == {"R@1", "MAP@R", "queries_without_match", "covering_radius", "NMI"}
    ranked = retrieval_scores(embeddings, labels, recall_at=(1,))
    assert {name: found[name] for name in ("R@1", "MAP@R")} == {name: ranked[name] for name in ("R@1", "MAP@R")}
    assert found["NMI"] == clustering_scores(embeddings, labels)["NMI"]
    assert found["covering_radius"] > 0


def test_scores_of_a_kind_share_one_pass_and_others_take_none(data, monkeypatch):
    passes = []
    for name in ("score_rankings", "clustering_scores"):
        genuine = getattr(measurement, name)

        def counted(*arguments, name=name, genuine=genuine, **options):
            passes.append(name)
            return genuine(*arguments, **options)

        monkeypatch.setattr(measurement, name, counted)
    measure(["R@1", "P@R", "MRR@3"], *data)
    assert passes == ["score_rankings"]
    measure(["NMI", "F1"], *data)
    assert passes == ["score_rankings", "clustering_scores"]


def test_rankings_are_of_the_gallery_and_the_rest_is_not(data):
    embeddings, labels = data
    found = measure(["R@1", "covering_radius"], embeddings, labels, 3 * embeddings[:9].flip(1), labels[:9])
    alone = measure(["R@1", "covering_radius"], embeddings, labels)
    assert found["R@1"] != alone["R@1"]
    assert found["covering_radius"] == alone["covering_radius"]


def test_an_unknown_name_is_refused_before_anything_is_computed():
    with pytest.raises(RecipeError, match="unknown score 'R@'"):
        measure(["R@1", "R@"], None, None)
