"""What a terminal shows of a run's scores, and the word on whether training helped."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from nearkin.report.formats import terminal
from nearkin.report.run_table import run_table, verdict
from nearkin.runs.scores import Scores
from nearkin.training.recipes import load_recipe

PRETRAINED = load_recipe(
    {"data": {"source": "my photos"}, "encoder": {"backbone": "efficientnet_lite0", "weights": "imagenet"}}
)
SCRATCH = load_recipe({"encoder": {"backbone": "small"}})


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
        "test": {"R@1": after[0], "MAP@R": after[1]},
        "best": {"epoch": 3.0},
        "last": {},
    }
    return Scores.from_record(said | more)


def shown(found):
    text = io.StringIO()
    Console(file=text, width=200).print(terminal(run_table(found)))
    return " ".join(text.getvalue().split())


def test_the_caption_says_what_untrained_is():
    found = scores((0.5, 0.2), (0.6, 0.3))
    assert "Untrained: the backbone as it was before training, without a head" in shown(found)
    assert "how often the nearest image is of the same class" in shown(found)
    assert "ntrained" not in shown(scores((0.5, 0.2), (0.6, 0.3), untrained=None))


def test_untrained_and_trained_stand_side_by_side_with_what_they_hold_for():
    table = run_table(scores((0.5, 0.2), (0.6, 0.3)))
    assert table.title == "my photos: proxy_anchor, classes never seen in training"
    (part,) = table.parts
    assert part.columns == ("score (%)", "untrained", "trained")
    assert [line.cells for line in part.lines] == [("R@1", "50.0", "60.0"), ("MAP@R", "20.0", "30.0")]
    assert table.conditions[0] == (
        "validation protocol, best MAP@R on the validation classes; seed 0; one abacus; 15 epochs in 4 s."
    )


@pytest.mark.parametrize(("selection", "beside"), [("best R@1 on the test classes", True), ("last epoch", False)])
def test_where_test_classes_chose_the_epoch_the_last_stands_beside_it(selection, beside):
    said = {"protocol": "conventional", "selection": selection, "last": {"epoch": 15.0, "R@1": 0.55}}
    (part,) = run_table(scores((0.5, 0.2), (0.6, 0.3), **said)).parts
    assert ("last epoch" in part.columns) == beside
    if beside:
        assert [line.cells[-1] for line in part.lines] == ["55.0", "–"]


def test_a_final_model_has_the_scores_of_the_run_that_chose_its_epoch():
    chosen = scores((0.5, 0.2), (0.6, 0.3))
    note = "trained on all images; the scores are those of runs/x"
    final = scores((0, 0), (0, 0), test=None, final_of={"run": "runs/x", "note": note, "scores": dict(chosen)})
    table = run_table(final)
    assert (table.title, table.parts) == (run_table(chosen).title, run_table(chosen).parts)
    assert table.conditions[0] == note
    unscored = scores((0, 0), (0, 0), test=None)
    bare = run_table(scores((0, 0), (0, 0), final_of={"run": "x", "note": note, "scores": dict(unscored)}))
    assert (bare.parts, bare.conditions) == ((), (note,))


def test_worse_scores_are_said_to_be_worse_with_what_to_do():
    said = verdict(scores((0.98, 0.71), (0.97, 0.699)), PRETRAINED)
    assert said.startswith("Training did not help: R@1 98.0 → 97.0, MAP@R 71.0 → 69.9. Try a smaller training.learning")
    assert "fewer training.epochs (now 20)" in said
    assert "nearkin evaluate --backbone efficientnet_lite0 --data 'my photos'" in said
    assert "\n" not in said


def test_where_the_last_epoch_was_the_best_more_are_advised():
    said = verdict(
        scores((0.98, 0.71), (0.97, 0.69), best={"epoch": 15.0}),
        PRETRAINED.replace(protocol=load_recipe({"protocol": {"name": "validation"}}).protocol),
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


@pytest.mark.parametrize("more", [{"untrained": None}, {"test": None}, {"steps": 0}])
def test_where_there_is_nothing_to_compare_nothing_is_said(more):
    assert verdict(scores((0.9, 0.9), (0.1, 0.1), **more), PRETRAINED) is None
