"""When evaluations show that training has destroyed the network; `tests/studies/test_collapse.py` trains some."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from nearkin.training.collapse import find_collapse, spread
from nearkin.training.recipe_check import load_recipe

RESULTS = Path(__file__).resolve().parents[2] / "results"
SCRATCH = load_recipe({"encoder": {"backbone": "small", "dim": 64}})
PRETRAINED = load_recipe({"encoder": {"backbone": "resnet50_v1", "dim": 512, "weights": "resnet50.safetensors"}})


def rows(*scores, spreads=(), losses=()):
    """Evaluations after each epoch, the first of the untrained backbone."""
    made = [{"epoch": epoch, "R@1": score} for epoch, score in enumerate(scores)]
    for row, value, loss in zip(made[1:], spreads, losses, strict=bool(spreads)):
        row |= {"spread": value, "loss": loss}
    return made


@pytest.mark.parametrize(
    ("scores", "queries", "epoch"),
    [
        ((0.511, 0.032, 0.21), 4000, 1),
        ((0.511, 0.60, 0.20), 4000, 2),  # later, as in a chain of CCP
        ((0.832, 0.63), 4000, None),  # worse than before, as over-fitting is
        ((0.51, 0.26), 4000, None),
        ((0.15, 0.03), 80, None),  # 12 hits and then 2 are within what chance does
        ((0.15, 0.03), 800, 1),
        ((0.02, 0.04), 4000, None),  # a network from scratch that begins with nothing
    ],
)
def test_a_fall_to_less_than_half_is_a_collapse_unless_chance_makes_it(scores, queries, epoch):
    collapse = find_collapse(rows(*scores), queries, SCRATCH)
    assert (collapse and collapse.epoch) == epoch


def test_a_narrow_embedding_may_score_below_the_features_it_is_made_of():
    fallen = rows(0.9, 0.2)
    assert find_collapse(fallen, 4000, SCRATCH.with_changes({"encoder.dim": 2})) is None
    assert find_collapse(fallen, 4000, SCRATCH.with_changes({"encoder.dim": None})) is not None


@pytest.mark.parametrize(
    ("spreads", "losses", "scores", "epoch"),
    [
        ((1e-5, 1e-5), (0.2, 0.2), (0.02, 0.02, 0.01), 2),
        ((1e-5, 1e-5), (0.2, 0.15), (0.02, 0.02, 0.01), None),  # the loss falls
        ((1e-5, 1e-2), (0.2, 0.2), (0.02, 0.02, 0.01), None),  # they have spread again
        ((1e-5, 1e-5), (0.2, 0.2), (0.02, 0.30, 0.31), None),  # near each other and yet in order
    ],
)
def test_embeddings_that_coincide_while_the_loss_stands_still_are_a_collapse(spreads, losses, scores, epoch):
    collapse = find_collapse(rows(*scores, spreads=spreads, losses=losses), 4000, SCRATCH)
    assert (collapse and collapse.epoch) == epoch


def test_without_classes_to_score_the_loss_and_the_embeddings_tell():
    still = [{"epoch": 0}, *({"epoch": epoch, "loss": 0.2, "spread": 1e-6} for epoch in (1, 2))]
    assert find_collapse(still, 1, SCRATCH).epoch == 2
    assert find_collapse([], 1, SCRATCH) is find_collapse(still[:1], 1, SCRATCH) is None


@pytest.mark.parametrize(
    ("recipe", "changes", "remedy"),
    [
        (PRETRAINED, {}, "training.warmup_epochs=1"),
        (PRETRAINED, {"training.warmup_epochs": 1}, "training.learning_rate"),
        (SCRATCH, {}, "training.learning_rate"),
        (load_recipe({"encoder": {"backbone": "timm:resnet18"}}), {}, "training.warmup_epochs=1"),
        (
            load_recipe({"encoder": {"backbone": "timm:resnet18", "options": {"pretrained": False}}}),
            {},
            "training.learning_rate",
        ),
    ],
)
def test_the_remedy_fits_the_start(recipe, changes, remedy):
    collapse = find_collapse(rows(0.5, 0.01), 4000, recipe.with_changes(changes))
    assert remedy in collapse.remedy
    assert len({key for key in ("warmup_epochs", "learning_rate") if key in collapse.remedy}) == 1


def test_spread_is_the_variance_around_the_mean_in_units_of_the_length():
    torch.manual_seed(0)
    x = torch.randn(50, 8, dtype=torch.float64) + 2
    by_hand = sum((row - x.mean(0)).square().sum() for row in x) / sum(row.square().sum() for row in x)
    assert spread(x) == pytest.approx(float(by_hand))
    assert spread(1000 * x) == pytest.approx(spread(x))
    assert spread(torch.nn.functional.normalize(torch.randn(9000, 64))) == pytest.approx(1, abs=0.01)
    assert spread(x.mean(0) + 1e-6 * x) < 1e-9


@pytest.mark.skipif(not RESULTS.is_dir(), reason="a source distribution has no result files")
def test_of_all_recorded_runs_only_one_had_collapsed():
    """CCP over MPA-AP fell from 83 to 11 in its eighth epoch. Whatever else was run was at worst a decline."""
    curves, collapsed = 0, []
    for file in sorted(RESULTS.rglob("*.jsonl")):
        for run in map(json.loads, file.read_text(encoding="utf-8").splitlines()):
            curve = run.get("evaluations", {})
            if any(score is not None for score in curve.get("R@1", ())):
                curves += 1
                evaluations = [
                    {"epoch": epoch, "R@1": score}
                    for epoch, score in zip(curve["epoch"], curve["R@1"], strict=True)
                    if score is not None
                ]
                if find_collapse(evaluations, 10_000, PRETRAINED):
                    collapsed.append((run["study"], run["row"], run["seed"]))
    assert curves > 1000
    known = {(run["study"], run["row"], run["seed"]) for run in marked_runs()}
    assert set(collapsed) - known == {("compositions", "ccp_mpa_ap", 0)}


def marked_runs():
    """Runs that said themselves that they collapsed."""
    for file in RESULTS.rglob("*.jsonl"):
        for line in file.read_text(encoding="utf-8").splitlines():
            if '"collapse": {' in line:
                yield json.loads(line)
