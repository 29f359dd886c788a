"""Networks that have learned Glyphs are destroyed by an absurd rate, which runs, tables and reports say."""

from __future__ import annotations

import csv
import json
import re
import warnings

import pytest
from PIL import Image
from tests.contracts.test_golden_curves import CHOSEN_FACES, TESTED, TRAINED, pixels_in_sheet

from nearkin.errors import Notice
from nearkin.report.page import differences_section, scores_section
from nearkin.report.run_groups import gather_runs
from nearkin.report.score_tables import score_table, verdict
from nearkin.report.table import markdown
from nearkin.runs.folder import RunFolder
from nearkin.runs.model_card import model_card
from nearkin.runs.run import run
from nearkin.studies.compare import compare
from nearkin.training.recipe_check import load_recipe

SMALL = {
    "data": {"transform": "glyphs", "image_size": 24, "workers": 1},
    "encoder": {"backbone": "small", "dim": 32, "pooling": "avg+max", "options": {"width": 8}},
    "training": {
        "epochs": 100,
        "batch_size": 48,
        "sampler": "balanced",
        "images_per_class": 4,
        "learning_rate": 3e-3,
        "proxy_lr_multiplier": 10,
        "schedule": "constant",
        "device": "cpu",
    },
}
HELD_OUT = ["protocol.name=conventional", "training.max_steps=20", "training.evaluate_every_steps=10"]
GENTLE, ABSURD = "training.learning_rate=5e-4", "training.learning_rate=0.3"


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """The changes that start a run from a network that has learned all classes, on data that hold out some of them."""
    root = tmp_path_factory.mktemp("glyphs")
    names = [character for character in TRAINED + TESTED for _ in CHOSEN_FACES]
    for name, tested in (("all.csv", ""), ("held-out.csv", TESTED)):
        with open(root / name, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["path", "label", "split"])
            for index, (pixels, character) in enumerate(zip(pixels_in_sheet(), names, strict=True)):
                Image.fromarray(pixels).save(root / f"{index}.png")
                writer.writerow([f"{index}.png", f"U+{ord(character):04X}", "test" if character in tested else "train"])
    whole = ["protocol.name=everything", "objective.name=normalized_softmax", "training.max_steps=150"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NEARKIN_CACHE", str(root / "cache"))
        run(load_recipe(SMALL, [f"data.source={json.dumps(str(root / 'all.csv'))}", *whole]), root / "learned")
    weights = str(RunFolder(root / "learned").encoder_file)
    source = str(root / "held-out.csv")
    return [f"data.source={json.dumps(source)}", f"encoder.weights={json.dumps(weights)}", *HELD_OUT]


def said_of(run_folder, recipe, **options):
    """A run's scores, and what it said while it trained."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", Notice)
        scores = run(recipe, run_folder, **options)
    return scores, [text for text in map(str, (warning.message for warning in caught)) if "collapsed" in text]


def test_a_collapse_is_said_once_and_kept_and_training_goes_on(learned, tmp_path):
    recipe = load_recipe(SMALL, [*learned, ABSURD])
    scores, said = said_of(tmp_path / "run", recipe)
    (line,) = said
    assert str(tmp_path / "run") in line
    assert "training.warmup_epochs=1" in line
    assert scores.collapse.epoch == RunFolder(tmp_path / "run").evaluations()[1]["epoch"]
    assert scores.steps == 20
    assert RunFolder(tmp_path / "run").scores().collapse == scores.collapse
    assert scores["collapse"]["evidence"].startswith(f"R@1 {100 * scores.untrained['R@1']:.1f} → ")
    assert verdict(scores, recipe, tmp_path / "run") == str(scores.collapse)
    folder = RunFolder(tmp_path / "run")
    assert str(scores.collapse) in model_card(folder, recipe, scores, folder.environment()).splitlines()
    # Longer, it is the same collapse, of which nothing new is to be said.
    longer, said = said_of(tmp_path / "run", recipe.with_changes({"training.max_steps": 30}), resume=True)
    assert (longer.steps, longer.collapse, said) == (30, scores.collapse, [])


@pytest.mark.parametrize("changes", [[], ["training.warmup_epochs=1"]], ids=["no warm-up", "warm-up"])
def test_a_healthy_run_is_not_marked(learned, tmp_path, changes):
    scores, said = said_of(tmp_path / "run", load_recipe(SMALL, [*learned, GENTLE, *changes]))
    assert (scores.collapse, said) == (None, [])
    assert "collapse" not in json.loads(RunFolder(tmp_path / "run").scores_file.read_text(encoding="utf-8"))


def test_tables_and_report_mark_a_collapsed_row(learned, tmp_path):
    (tmp_path / "small.yaml").write_text(json.dumps(SMALL), encoding="utf-8")
    changes = [*learned[1:], GENTLE]
    source = json.loads(learned[0].partition("=")[2])
    study = compare(
        source,
        recipe=str(tmp_path / "small.yaml"),
        ablate=[ABSURD, "training.proxy_lr_multiplier=20"],
        seeds=2,
        changes=changes,
        folder=tmp_path / "study",
    )
    (absurd,) = (result.row.name for result in study.results if any(scores.collapse for scores in result.scores))
    assert "0.3" in absurd
    table = study.table()
    title = f"{next(row.title for row in study.rows if row.name == absurd)} (collapsed)"
    assert sum(title in line.cells[0] for part in table.parts for line in part.lines) == 2  # scores and differences
    (note,) = (note for note in table.notes if "collapsed" in note)
    assert "training.warmup_epochs=1" in note
    assert "means nothing" in note
    (differences,) = (part for part in table.parts if "difference" in part.columns)
    ends = {line.cells[0]: line.cells[4] for line in differences.lines if line.cells[0]}
    assert [name for name, interval in ends.items() if interval == "–"] == [title]
    records = [record for record in table.records if record["row"] == absurd and record["metric"] == "R@1"]
    assert [(record["collapsed"], record["verdict"]) for record in records] == [(["0", "1"], None)]
    groups = gather_runs([tmp_path / "study"]).groups
    assert title in markdown(score_table(groups))
    assert f"{title}: " in scores_section(groups)
    (row,) = (row for row in differences_section(groups).split("<tr") if title in row)
    assert re.findall(r"<td[^>]*>([^<]*)</td>", row)[3:] == ["–", "–"]
    assert not {"▲", "▼", "≈"} & set(row)
