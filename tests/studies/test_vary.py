from __future__ import annotations

import json

import pytest

from nearkin.errors import RecipeError
from nearkin.studies.vary import Vary
from nearkin.training.recipes import load_recipe


def test_every_value_is_a_row_held_against_the_recipe_s_own():
    base = load_recipe("glyphs/demo", ["training.learning_rate=0.001"])
    study = Vary(base, key="training.learning_rate", values=("0.01", "0.001", "1e-4"), seeds=2, folder="runs/x")
    rows = [(row.name, row.recipe.training.learning_rate, row.base) for row in study.rows]
    own = "learning_rate-0.001"
    assert rows == [("learning_rate-0.01", 0.01, own), (own, 0.001, None), ("learning_rate-1e-4", 1e-4, own)]
    assert len(study.runs()) == 6
    assert {planned.seed for planned in study.runs()} == {0, 1}


def test_the_folder_follows_what_is_varied():
    base = load_recipe("glyphs/demo")
    first, same, other = (
        Vary(base, key="training.batch_size", values=values).folder
        for values in (("64", "32"), ("64", "32"), ("64", "16"))
    )
    assert first == same != other
    assert first.name.startswith("vary-glyphs-")


@pytest.mark.parametrize(
    ("key", "values", "said"),
    [
        ("training.batch_size", ("64",), "two values or more"),
        ("training.batch_size", ("64", "64"), "two values or more"),
        ("training.bach_size", ("64", "32"), "did you mean 'batch_size'"),
        ("training.batch_size", ("64", "many"), r"training\.batch_size"),
    ],
)
def test_what_cannot_be_varied_is_refused(key, values, said):
    with pytest.raises(RecipeError, match=said):
        Vary(load_recipe("glyphs/demo"), key=key, values=values)


def test_a_study_from_the_command_line_to_its_table(nearkin, photos, tmp_path):
    tiny = ["own_photos/small", f"data.source={json.dumps(str(photos))}", "training.max_steps=2", "training.device=cpu"]
    command = ["study", "vary", *tiny, "--set", "key=training.images_per_class", "--set", "values=2,4"]
    command += ["--seeds", "1", "-o", tmp_path / "study", "--yes"]
    code, out, err = nearkin(*command)
    assert code == 0, err
    assert "training.images_per_class=2" in out
    assert {file.suffix for file in (tmp_path / "study").glob("comparison.*")} == {".md", ".csv", ".json", ".png"}
    code, again, err = nearkin(*command, "--json")
    assert code == 0, err
    assert "2 of them finished already" in err
    # The recipe's own value is what the other is held against, so it stands first.
    assert [row["name"] for row in json.loads(again)["rows"]] == ["images_per_class-4", "images_per_class-2"]
