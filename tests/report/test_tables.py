"""What a terminal shows of a run's scores, and the word on whether training helped."""

from __future__ import annotations

import io

import pytest
from nearkin.report.tables import score_table, verdict
from rich.console import Console

from nearkin.recipe import Recipe

PRETRAINED = Recipe.from_mapping(
    {"data": {"source": "my photos"}, "encoder": {"backbone": "efficientnet_lite0", "weights": "imagenet"}}
)
SCRATCH = Recipe.from_mapping({"encoder": {"backbone": "small"}})


def scores(before, after, **more):
    """R@1 and MAP@R before and after training."""
    said = {
        "data": "my photos",
        "objective": "proxy_anchor",
        "protocol": "validation",
        "selection": "best MAP@R on the validation classes",
        "test_classes": "classes never seen in training",
        "seed": 0,
        "hardware": "one abacus",
        "steps": 10,
        "epochs": 15.0,
        "seconds": 4.0,
        "untrained": {"R@1": before[0], "MAP@R": before[1]},
        "baseline": "backbone",
        "test": {"R@1": after[0], "MAP@R": after[1]},
        "best": {"epoch": 3.0},
        "last": {},
    }
    return said | more


def shown(found):
    text = io.StringIO()
    Console(file=text, width=200).print(score_table(found))
    return " ".join(text.getvalue().split())


def test_the_caption_says_what_untrained_is():
    found = scores((0.5, 0.2), (0.6, 0.3))
    assert "untrained: the backbone as it was before training, without a head" in shown(found)
    assert "how often the nearest image is of the same class" in shown(found)
    del found["baseline"]
    assert "untrained: the backbone behind a random head, which is worse" in shown(found), "a run of an early version"
    assert "untrained" not in shown(found | {"untrained": None})


def test_worse_scores_are_said_to_be_worse_with_what_to_do():
    said = verdict(scores((0.98, 0.71), (0.97, 0.699)), PRETRAINED)
    assert said.startswith("Training did not help: R@1 98.0 → 97.0, MAP@R 71.0 → 69.9. Try a smaller training.learning")
    assert "fewer training.epochs (now 20)" in said
    assert "nearkin evaluate --backbone efficientnet_lite0 --data 'my photos'" in said
    assert "\n" not in said


def test_where_the_last_epoch_was_the_best_more_are_advised():
    said = verdict(
        scores((0.98, 0.71), (0.97, 0.69), best={"epoch": 15.0}),
        PRETRAINED.replace(protocol=Recipe.from_mapping({"protocol": {"name": "validation"}}).protocol),
    )
    assert "more training.epochs (now 20)" in said


def test_a_network_from_scratch_is_not_advised_to_stay_untrained():
    said = verdict(scores((0.2, 0.1), (0.1, 0.05)), SCRATCH)
    assert "began as random numbers" in said
    assert "--backbone" not in said


@pytest.mark.parametrize(
    ("before", "after", "begins"),
    [
        ((0.98, 0.70), (0.97, 0.75), "Training helped and hurt: R@1 98.0 → 97.0, but MAP@R 70.0 → 75.0."),
        ((0.90, 0.70), (0.90, 0.70), "Training changed nothing."),
        ((0.90, 0.70004), (0.90, 0.70), "Training changed nothing."),  # the table shows no difference
        ((0.90, 0.70), (0.90, 0.72), None),
        ((0.90, 0.70), (0.95, 0.80), None),
        ((1.00, 1.00), (1.00, 1.00), None),  # there was nothing to gain
    ],
)
def test_mixed_and_equal_scores(before, after, begins):
    said = verdict(scores(before, after), PRETRAINED)
    assert said is None if begins is None else said.startswith(begins)


@pytest.mark.parametrize("more", [{"baseline": None}, {"untrained": None}, {"test": None}, {"steps": 0}])
def test_where_there_is_nothing_to_compare_nothing_is_said(more):
    assert verdict(scores((0.9, 0.9), (0.1, 0.1), **more), PRETRAINED) is None


def test_train_says_it(nearkin, photos, tmp_path, monkeypatch):
    from nearkin.evaluation.protocol import Protocol

    falling = iter([0.9, 0.5, 0.4])
    monkeypatch.setattr(Protocol, "score", lambda *_, **__: {"R@1": (value := next(falling)), "MAP@R": value})
    quick = ["encoder.backbone=small", "encoder.weights=null", "data.image_size=32", "training.epochs=1"]
    quick += ["protocol.name=conventional", "training.device=cpu", "--no-picture"]
    code, out, err = nearkin("train", "--data", photos, "-o", tmp_path / "run", *quick)
    assert code == 0, err
    assert "Training did not help: R@1 90.0 → 40.0" in out
    assert "--final" not in out


def test_train_ends_with_the_way_to_the_final_model(nearkin, photos, tmp_path, monkeypatch):
    from nearkin.evaluation.protocol import Protocol

    rising = iter([0.4, 0.5, 0.9])
    monkeypatch.setattr(Protocol, "score", lambda *_, **__: {"R@1": (value := next(rising)), "MAP@R": value})
    quick = ["encoder.backbone=small", "encoder.weights=null", "data.image_size=32", "training.epochs=1"]
    quick += ["protocol.name=conventional", "training.device=cpu", "--no-picture"]
    code, out, err = nearkin("train", "--data", photos, "-o", tmp_path / "run", *quick)
    assert code == 0, err
    assert f"nearkin train --final {tmp_path / 'run'}" in out.splitlines()[-1]
