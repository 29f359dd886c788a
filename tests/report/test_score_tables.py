"""Tables of scores against means and spreads that were worked out by hand."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import pytest
from rich.console import Console

from nearkin.errors import DataError, RecipeError
from nearkin.report.run_groups import gather_runs
from nearkin.report.score_tables import run_table, score_table, verdict
from nearkin.report.table import csv_text, latex, markdown, terminal
from nearkin.runs.scores import Scores
from nearkin.training.recipe_check import load_recipe

CUB = (
    "data.source=cub",
    "encoder.backbone=resnet50",
    "encoder.dim=512",
)


def table_of(*paths, **options):
    return score_table(gather_runs(paths).groups, **options)


def records_of(*paths, **options):
    return list(table_of(*paths, **options).records)


def test_seeds_become_a_line_with_mean_and_sample_deviation(write_run):
    runs = [
        write_run(f"r{seed}", {"R@1": value, "MAP@R": 0.25}, seed=seed)
        for seed, value in ((3, 0.5), (1, 0.6), (2, 0.7))
    ]
    best, last = records_of(*runs)
    assert best["R@1"] == pytest.approx(0.6)
    assert best["R@1 spread"] == pytest.approx(0.1)
    assert last["R@1"] == pytest.approx(0.5)
    assert (best["scores"], last["scores"]) == ("best evaluation", "last epoch")
    assert best["seeds"] == "1, 2, 3"
    assert (best["selection"], last["selection"]) == ("best R@1 on the test classes", "last epoch")
    (part,) = table_of(*runs).parts
    assert [line.cells[:4] for line in part.lines] == [
        ("proxy_anchor", "best evaluation", "3", "60.0 ± 10.0"),
        ("", "last epoch", "3", "50.0 ± 10.0"),
    ]
    assert [line.begins_group for line in part.lines] == [True, False]


def test_a_single_seed_has_no_spread_and_validation_has_no_last_epoch(write_run):
    chosen = {"overrides": ["protocol.name=validation"], "selection": "best MAP@R on the validation classes"}
    table = table_of(write_run("one", {"R@1": 0.5}, **chosen))
    (line,) = table.parts[0].lines
    assert line.cells == ("proxy_anchor", "1", "50.0")
    (caption,) = table.conditions
    assert "validation protocol; best MAP@R on the validation classes; seed 0; one abacus" in caption
    assert caption.count("one seed, so no spread") == 1
    assert "±" not in caption


def test_what_differs_gets_a_column_and_what_is_shared_the_caption(write_run):
    first = write_run("a", {"R@1": 0.5})
    second = write_run("b", {"R@1": 0.5}, overrides=["objective.alpha=16"], hardware="two abaci")
    table = table_of(first, second)
    assert table.parts[0].columns[-2:] == ("selection", "hardware")
    assert "one abacus" not in table.conditions[0]
    assert "conventional protocol" in table.conditions[0]
    titles = {record["title"] for record in table.records}
    assert titles == {"proxy_anchor (alpha=default)", "proxy_anchor (alpha=16.0)"}


def test_unfinished_runs_are_named_and_not_counted(write_run):
    done, begun = write_run("done", {"R@1": 0.5}), write_run("begun", {"R@1": 0.5}, seed=1)
    (begun / "scores.json").unlink()
    table = table_of(done, begun)
    assert table.records[0]["n"] == 1
    assert str(begun) in table.notes[0]
    with pytest.raises(DataError, match="not finished"):
        table_of(begun)


def test_metrics_are_chosen_by_name(write_run):
    run = write_run("a", {"R@1": 0.5, "MAP@R": 0.25, "covering_radius": 0.5})
    for metrics, shown in ((["MAP@R", "R@1"], ["MAP@R", "R@1"]), (None, ["R@1", "MAP@R", "covering_radius"])):
        record, *_ = records_of(run, metrics=metrics)
        assert [key.removesuffix(" spread") for key in record if key.endswith(" spread")] == shown
    with pytest.raises(RecipeError, match=r"no score 'R@l'.*R@1"):
        table_of(run, metrics=["R@l"])


def test_models_of_the_reality_check_are_one_group_with_two_lines(write_run, tmp_path):
    for fold in range(2):
        overrides = [*CUB, "encoder.dim=128", "protocol.name=mlrc", "protocol.folds=2", f"protocol.fold={fold}"]
        write_run(f"mlrc/fold-{fold}/seed-{fold}", {"R@1": 0.5 + fold / 10}, seed=fold, overrides=overrides)
    (without,) = records_of(tmp_path / "mlrc")
    assert without["scores"] == "mean of 2 models"
    assert without["R@1"] == pytest.approx(0.55)
    found = {
        "select_by": "MAP@R",
        "seeds": [0, 1],
        "folds": 2,
        "repeats": 1,
        "backbone": "resnet50",
        "dim": 128,
        "concatenated_dim": 256,
        "separate": {"P@1": {"mean": 0.55, "spread": None, "values": [0.55], "interval": None}},
        "concatenated": {"P@1": {"mean": 0.61, "spread": None, "values": [0.61], "interval": None}},
    }
    (tmp_path / "mlrc" / "mlrc.json").write_text(json.dumps(found))
    table = table_of(tmp_path / "mlrc")
    lines = [(record["scores"], record["R@1"]) for record in table.records]
    assert lines == [("mean of 2 models, 128-d", 0.55), ("2 models concatenated, 256-d", 0.61)]


class TestFormats:
    @pytest.fixture
    def table(self, write_run):
        odd = [r"encoder.backbone='hf:a_b&c|d'", "encoder.dim=8"]
        write_run("x", {"R@1": 0.5, "MAP@R": 0.123456}, seed=0, overrides=odd)
        write_run("y", {"R@1": 0.7, "MAP@R": 0.2}, seed=1, overrides=odd)
        other = write_run("z", {"R@1": 0.4}, overrides=["objective.name=mpa_ap"])
        return table_of(other.parent / "x", other.parent / "y", other)

    def test_markdown_has_as_many_cells_in_every_line(self, table):
        text = markdown(table)
        lines = [line for line in text.splitlines() if line.startswith("|")]
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines}) == 1
        assert "| 60.0 ± 14.1 |" in text
        assert r"hf:a_b&c\|d" in text

    def test_latex_is_escaped_and_whole(self, table):
        text = latex(table)
        assert text.count("{") == text.count("}")
        assert r"mpa\_ap" in text
        assert r"hf:a\_b\&c|d" in text
        assert r"60.0 $\pm$ 14.1" in text
        body = text[text.index(r"\toprule") : text.index(r"\bottomrule")]
        rows = [line for line in body.splitlines() if line.endswith(r"\\")]
        assert len({len(re.findall(r"(?<!\\)&", row)) for row in rows}) == 1
        columns = re.search(r"\\begin\{tabular\}\{([lr]+)\}", text)[1]
        assert len(columns) == len(re.findall(r"(?<!\\)&", rows[0])) + 1
        assert text.isascii()

    def test_csv_has_all_digits_and_all_conditions(self, table):
        rows = list(csv.DictReader(io.StringIO(csv_text(table))))
        assert float(rows[0]["MAP@R"]) == pytest.approx((0.123456 + 0.2) / 2, abs=1e-15)
        assert rows[0]["n"] == "2"
        for name in ("data", "encoder", "protocol", "selection", "seeds", "hardware", "recipes"):
            assert all(row[name] for row in rows)
        assert next(row for row in rows if row["title"] == "mpa_ap")["MAP@R"] == ""


def test_a_finer_map_and_mirror_images_are_named_in_every_line(write_run):
    chosen = "best R@1 on the test classes; embeddings averaged with those of mirror images"
    overrides = ["encoder.last_stride=1", "protocol.flip=true"]
    run = write_run("r", {"R@1": 0.6}, overrides=overrides, selection=chosen, weights="weights averaged")
    assert [record["scores"] for record in records_of(run)] == ["best evaluation", "last epoch"]
    for record in records_of(run):
        assert record["encoder"] == "small, 128-d, last stride 1, weights averaged"
        assert record["selection"].endswith("averaged with those of mirror images")


PRETRAINED = load_recipe(
    {"data": {"source": "my photos"}, "encoder": {"backbone": "efficientnet_lite0", "weights": "imagenet"}}
)
SCRATCH = load_recipe({"encoder": {"backbone": "small"}})
FOLDER = Path("my runs/a")


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


def printed(found):
    text = io.StringIO()
    Console(file=text, width=200).print(terminal(run_table(found)))
    return " ".join(text.getvalue().split())


def test_the_caption_says_what_untrained_is():
    found = scores((0.5, 0.2), (0.6, 0.3))
    assert "Untrained: the backbone as it was before training, without a head" in printed(found)
    assert "how often the nearest image is of the same class; MAP@R: whether all images of the class" in printed(found)
    assert "ntrained" not in printed(scores((0.5, 0.2), (0.6, 0.3), untrained=None))


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
    values = {"test": None, "epochs": 1.0, "seconds": 9.0}
    final = scores((0, 0), (0, 0), **values, final_of={"run": "runs/x", "note": note, "scores": dict(chosen)})
    table = run_table(final)
    assert (table.title, table.parts) == (run_table(chosen).title, run_table(chosen).parts)
    ran, own = "runs/x: validation protocol, best MAP@R", "This model: 1 epoch in 9 s."
    assert (table.conditions[0], table.conditions[1].startswith(ran), table.conditions[-1]) == (note, True, own)
    unscored = scores((0, 0), (0, 0), test=None)
    bare = run_table(scores((0, 0), (0, 0), final_of={"run": "x", "note": note, "scores": dict(unscored)}))
    assert (bare.parts, bare.conditions) == ((), (note, "This model: 15 epochs in 4 s."))


def test_new_images_are_scored_or_it_is_said_why_not_and_of_which_model():
    few = "it takes 15 images new to the encoder, with another of their class, got 9"
    shares = {"accuracy": 0.9, "refused": 0.1, "unknown_refused": 0.75}
    ran = scores((0.5, 0.2), (0.6, 0.3), no_new_images=few)
    assert run_table(ran).conditions[-1] == f"New images of known classes: not scored; {few}."
    new_images = {"images": 18, "classes": 9, **shares}
    first_run = {"run": "runs/x", "note": "a note", "scores": dict(ran)}
    *others, last = run_table(scores((0, 0), (0, 0), test=None, new_images=new_images, final_of=first_run)).conditions
    assert last == (
        "This model on new images of known classes: 90.0 % get the right label. At the default threshold 10.0 % get "
        "none, and 75.0 % where no other image of their class can be found (18 images kept out of training, of 9 "
        "classes)."
    )
    assert not any("New images" in line for line in others), "those of the first run are another model's"
    assert scores((0, 0), (0, 0)).on_new_images is None


def test_worse_scores_are_said_to_be_worse_with_what_to_do():
    said = verdict(scores((0.98, 0.71), (0.97, 0.699)), PRETRAINED, FOLDER)
    assert said.startswith("Training did not help: R@1 98.0 → 97.0, MAP@R 71.0 → 69.9. Try training.warmup_epochs=1")
    assert "a smaller training.learning_rate" in said
    assert "fewer training.epochs (now 20)" in said
    assert said.endswith(
        "nearkin train 'my runs/a/recipe.yaml' training.epochs=0 encoder.dim=null -o 'my runs/a-untrained'"
    )
    assert "\n" not in said


def test_where_the_last_epoch_was_the_best_more_are_advised():
    said = verdict(
        scores((0.98, 0.71), (0.97, 0.69), best={"epoch": 15.0}),
        PRETRAINED.replace(protocol=load_recipe({"protocol": {"name": "validation"}}).protocol),
        FOLDER,
    )
    assert "more training.epochs (now 20)" in said


def test_a_network_from_scratch_is_not_advised_to_stay_untrained():
    said = verdict(scores((0.2, 0.1), (0.1, 0.05)), SCRATCH, FOLDER)
    assert "encoder.weights" in said
    assert "nearkin train" not in said


@pytest.mark.parametrize(
    ("before", "after", "begins"),
    [
        ((0.98, 0.70), (0.97, 0.75), "Training hurt R@1 98.0 → 97.0, and helped MAP@R 70.0 → 75.0."),
        ((0.90, 0.70), (0.90, 0.70), "Training changed nothing."),
        ((0.90, 0.70004), (0.90, 0.70), "Training changed nothing."),  # the table shows no difference
        ((0.90, 0.70), (0.90, 0.72), None),
        ((0.90, 0.70), (0.95, 0.80), None),
        ((1.00, 1.00), (1.00, 1.00), None),  # there was nothing to gain
    ],
)
def test_mixed_and_equal_scores(before, after, begins):
    said = verdict(scores(before, after), PRETRAINED, FOLDER)
    assert said is None if begins is None else said.startswith(begins)


@pytest.mark.parametrize("more", [{"untrained": None}, {"test": None}, {"steps": 0}])
def test_where_there_is_nothing_to_compare_nothing_is_said(more):
    assert verdict(scores((0.9, 0.9), (0.1, 0.1), **more), PRETRAINED, FOLDER) is None
