"""What every score must be, and that adding one is adding a file."""

from __future__ import annotations

import csv
import json
import re
import sys
from pathlib import Path

import pytest
import torch

from nearkin.errors import RecipeError
from nearkin.evaluation import measure, scores
from nearkin.evaluation.scores import RetrievalScore, is_score, score_named
from nearkin.training.recipe_check import load_recipe

ROOT = Path(__file__).resolve().parents[3]
NAMES = [name.replace("@k", "@3") for family in scores.catalogue().values() for name in family.meanings]


def test_names_that_are_known():
    assert {"R@3", "P@3", "P@R", "MAP@3", "MAP@R", "nDCG@3", "MRR@3", "NMI", "F1", "covering_radius"} <= set(NAMES)
    others = ("epoch", "seconds", "queries_without_match", "R@0", "R@01", "R@k", "R@-1", "R@1.5", "R@R", "nmi", "")
    assert not any(map(is_score, others))
    with pytest.raises(RecipeError, match="unknown score 'MPR@10': did you mean 'MRR@k'"):
        score_named("MPR@10")


def test_no_name_has_two_scores():
    patterns = [name for family in scores.catalogue().values() for name in family.meanings]
    assert len(set(patterns)) == len(patterns)


@pytest.mark.parametrize("name", NAMES)
def test_every_score_says_what_it_is(name):
    score = score_named(name)
    assert (score.name, is_score(name)) == (name, True)
    assert score.heading
    assert score.meaning[-1] == "."
    assert score_named(name) == score


@pytest.mark.parametrize("name", NAMES)
def test_every_score_prefers_classes_that_lie_apart(name):
    labels = torch.arange(40) % 4
    apart = 9.0 * torch.eye(4)[labels] + torch.rand(40, 4, generator=torch.Generator().manual_seed(0))
    mixed = apart[torch.randperm(40, generator=torch.Generator().manual_seed(1))]
    good, bad = (measure([name], embeddings, labels)[name] for embeddings in (apart, mixed))
    assert good > bad if score_named(name).higher_is_better else good < bad


@pytest.mark.parametrize("name", [name for name in NAMES if isinstance(score_named(name), RetrievalScore)])
def test_rankings_without_a_hit_and_with_nothing_else(name):
    score = score_named(name)
    for length in (2, 5):
        all_right = score.per_query(torch.ones(2, length, dtype=torch.bool), torch.tensor([length, 7]))
        assert all_right.dtype == torch.float64
        assert float(score.per_query(torch.zeros(1, length, dtype=torch.bool), torch.tensor([2]))) == 0.0
    assert all_right[0] == 1.0


def test_text():
    assert score_named("R@8").text(0.6571, 0.0042) == "65.7 ± 0.4"
    assert score_named("R@8").text(0.5) == "50.0"
    assert score_named("R@8").text(0.5, 0.0) == "50.0 ± 0.0"
    assert score_named("covering_radius").text(0.41189, 0.002) == "0.412 ± 0.002"
    assert (score_named("covering_radius").heading, score_named("MAP@R").heading) == ("covering radius", "MAP@R")


@pytest.fixture
def all_right(tmp_path, monkeypatch):
    """The score of docs/add_score.md, as a file of the package."""
    page = (ROOT / "docs" / "add_score.md").read_text(encoding="utf-8")
    (code,) = (code for code in re.findall(r"^```python\n(.*?)^```", page, flags=re.S | re.M) if "AllRight" in code)
    (tmp_path / "all_right.py").write_text(code)
    monkeypatch.setattr(scores, "__path__", [*scores.__path__, str(tmp_path)])
    scores.catalogue.cache_clear()
    yield
    scores.catalogue.cache_clear()
    sys.modules.pop("nearkin.evaluation.scores.all_right", None)


@pytest.mark.usefixtures("all_right")
def test_a_score_is_one_file(tmp_path, nearkin, photos):
    assert scores.catalogue()["all_right"].__name__ == "AllRight"
    by_name = {row["name"]: row for row in json.loads(nearkin("list", "scores", "--json")[1])}
    assert by_name["All@k"]["measured"] == "every evaluation"
    assert "All@k" in nearkin("list", "scores")[1]
    assert "| `All@k` |" in nearkin("list", "scores", "--markdown")[1]

    tiny = [f"data.source={photos}", "training.max_steps=3", "protocol.name=conventional"]
    tiny += ["protocol.scores=[All@2, NMI]", "protocol.select_by=All@2"]
    code, out, err = nearkin("train", "own_photos/small", *tiny, "--no-figure", "-o", tmp_path / "run")
    assert code == 0, err
    assert "All@2" in out
    last = list(csv.DictReader((tmp_path / "run" / "evaluations.csv").read_text().splitlines()))[-1]
    assert 0 <= float(last["All@2"]) <= float(last["R@2"])
    assert "NMI" not in last
    assert {"All@2", "NMI"} <= set(json.loads((tmp_path / "run" / "scores.json").read_text())["test"])


def test_without_its_file_the_score_is_unknown():
    with pytest.raises(RecipeError, match=r"protocol\.scores: unknown score 'All@2'"):
        load_recipe("own_photos/small", ["protocol.scores=[All@2]"])
