from __future__ import annotations

import json

import pytest

from nearkin.errors import RecipeError
from nearkin.studies.ablate import Ablate
from nearkin.training.recipes import load_recipe


def test_every_change_is_a_row_held_against_the_recipe():
    base = load_recipe("glyphs/demo", ["training.learning_rate=0.001"])
    study = Ablate(base, changes=("training.learning_rate=0.01", "encoder.pooling=avg+max&encoder.dim=null"), seeds=2)
    own, rate, encoder = study.rows
    assert (own.recipe, own.base) == (base, None)
    assert (rate.recipe.training.learning_rate, rate.recipe.encoder) == (0.01, base.encoder)
    assert (encoder.recipe.encoder.pooling, encoder.recipe.encoder.dim) == ("avg+max", None)
    assert encoder.recipe.training == base.training
    assert [row.base for row in (rate, encoder)] == [own.name] * 2
    assert len(study.runs()) == 6


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (("training.bach_size=64",), "did you mean 'batch_size'"),
        (("training.seed=1", "training.seed=1"), "not all different"),
        (("training.momentum=0.9",), "changes nothing"),
        (("training.momentum",), "momentum"),
    ],
)
def test_what_cannot_be_changed_is_refused(changes, said):
    with pytest.raises(RecipeError, match=said):
        Ablate(load_recipe("glyphs/demo"), changes=changes)


def test_a_study_from_the_command_line_to_its_table(nearkin, photos, tmp_path):
    tiny = ["own_photos/small", f"data.source={json.dumps(str(photos))}", "training.max_steps=2", "training.device=cpu"]
    changes = "changes=encoder.pooling=max,training.max_grad_norm=10"
    command = ["study", "ablate", *tiny, "--set", changes, "--seeds", "1", "-o", tmp_path / "study", "--yes"]
    code, out, err = nearkin(*command)
    assert code == 0, err
    assert "encoder.pooling=max" in out
    code, again, err = nearkin(*command, "--json")
    assert code == 0, err
    assert [row["name"] for row in json.loads(again)["rows"]] == ["as_it_is", "pooling-max", "max_grad_norm-10"]
