"""Rows of a comparison: the files that come with nearkin, files of one's own, one key's values, single changes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nearkin import losses
from nearkin.errors import DataError, RecipeError
from nearkin.recipe import recipes_folder
from nearkin.studies.rows import (
    ENDING,
    ablated_rows,
    base_recipe,
    chosen_rows,
    named_rows,
    read_rows,
    rows_file,
    rows_on,
    shared_recipe,
    varied_rows,
)
from nearkin.training.recipe_check import load_recipe, validate

EXPECTED = {
    "proxy_anchor": ("proxy_anchor", "plain", None),
    "proxy_nca_pp": ("proxy_nca_pp", "plain", None),
    "normalized_softmax": ("normalized_softmax", "plain", None),
    "soft_triple": ("soft_triple", "plain", None),
    "contrastive": ("contrastive", "plain", None),
    "cosine_contrastive": ("cosine_contrastive", "plain", None),
    "triplet": ("triplet", "plain", None),
    "margin": ("margin", "plain", None),
    "multi_similarity": ("multi_similarity", "plain", None),
    "xbm": ("cross_batch_memory", "plain", "contrastive"),
    "c1_ccp": ("cosine_contrastive", "ccp", "cosine_contrastive"),
    "c2_ccp": ("contrastive", "ccp", "contrastive"),
    "ms_ccp": ("multi_similarity", "ccp", "multi_similarity"),
    "profs": ("contrastive", "profs", "contrastive"),
    "profs_hncm": ("contrastive", "profs", "contrastive"),
    "profs_hncm_margin": ("margin", "profs", "margin"),
    "mpa": ("mpa", "plain", "proxy_anchor"),
    "mpa_dw": ("mpa_dw", "plain", "proxy_anchor"),
    "mpa_ap": ("mpa_ap", "plain", "proxy_anchor"),
    "vcpa": ("vcpa", "plain", "proxy_anchor"),
}


NOT_BUDGET = {
    "encoder.normalisation",
    "training.sampler",
    "training.images_per_class",
    "training.learning_rate",
    "training.head_lr_multiplier",
    "training.proxy_lr_multiplier",
    "training.warmup_epochs",
    "training.max_grad_norm",
    "training.max_grad_value",
    "training.evaluate_every_steps",
}
"""What the usual rows may set besides loss and method."""


def recipe_for(data=None, overrides=(), *, say=print):
    return base_recipe(shared_recipe(data, say=say), data, overrides)


def all_rows(base, only=None, overrides=()):
    return rows_on(base, chosen_rows(read_rows(rows_file(base)), only), overrides=overrides)


@pytest.mark.parametrize(("name", "data"), [("glyphs", "glyphs"), ("photos", "cars"), ("cub", "cub")])
def test_the_usual_rows_differ_in_loss_and_method_and_have_one_budget(name, data):
    base = recipe_for(data)
    assert rows_file(base) == named_rows(name)
    rows = {row.name: row for row in all_rows(base)}
    isa = "proxy_isa_without_penalties" if name == "photos" else "proxy_isa"
    expected = {**EXPECTED, isa: (isa, "plain", "proxy_anchor")}
    assert {key: (row.recipe.objective.name, row.recipe.method.name, row.base) for key, row in rows.items()} == expected
    shared = base.as_mapping()
    for row in rows.values():
        kind = losses.kind(losses.catalogue()[row.recipe.objective.name])
        assert row.recipe.training.sampler == ("random" if kind == "proxy" else "balanced"), row.name
        if row.recipe.method.name != "plain":
            assert row.recipe.objective == rows[row.base].recipe.objective, "only the method differs"
        for section, values in row.recipe.as_mapping().items():
            if section not in ("objective", "method"):
                changed = {f"{section}.{key}" for key, value in values.items() if value != shared[section][key]}
                assert changed <= NOT_BUDGET, row.name


@pytest.mark.parametrize("name", sorted(path.name for path in (recipes_folder() / "compare").iterdir()))
def test_every_file_of_rows_can_be_trained_on_its_recipe(name):
    name = name.removesuffix(ENDING)
    overrides = ["protocol.name=conventional", "protocol.monitor_test=true"] if name.startswith("cub") else []
    overrides += ["encoder.weights=null"] if name == "cub-vit" else []  # they are on a hub
    data = name.partition("-")[0].replace("photos", "cars")
    base = base_recipe(shared_recipe(data, rows_from=name), data, overrides)
    rows = {row.name: row for row in rows_on(base, read_rows(named_rows(name)), overrides=overrides)}
    for row in rows.values():
        validate(row.recipe)
        if (
            name in ("cub-ccp-conventional", "cub-ccp-lambda", "cub-ccp-reality-check")
            and row.recipe.method.name == "ccp"
        ):
            assert replace(row.recipe, method=rows[row.base].recipe.method) == rows[row.base].recipe
        if name == "cub-best":
            best = load_recipe("cub/best")
            assert (row.recipe.data, row.recipe.encoder.dim) == (best.data, best.encoder.dim)
            assert row.recipe.training.ema_decay == best.training.ema_decay
    if name in ("cub-profs", "cub-isa", "cub-vcpa", "cub-vcpa-tenth", "cub-mpa", "cub-base"):
        for row in rows.values():
            theirs = base.training if row.base is None else rows[row.base].recipe.training
            budget = ("epochs", "batch_size", "lr_decay_every", "warmup_epochs")
            same_budget = {key: getattr(theirs, key) for key in budget}
            assert replace(row.recipe.training, **same_budget) == theirs, "only the budget, as table or title say"


def test_a_base_recipe_suits_the_data(tmp_path):
    assert recipe_for().data.source == "glyphs"
    cub = recipe_for("cub")
    assert (cub.encoder.backbone, cub.protocol.name, cub.training.batch_size) == ("resnet50_v1", "validation", 120)
    assert (recipe_for("cars").data.source, recipe_for("cars").encoder.backbone) == ("cars", "resnet50_v1")
    assert recipe_for("mnist").encoder.backbone == "small"
    photos = recipe_for(str(tmp_path), say=lambda _: None)
    assert (photos.data.source, photos.protocol.name) == (str(tmp_path), "validation")
    assert rows_file(photos).name == "photos.compare.yml"
    assert base_recipe("cub/proxy_anchor", None, ["protocol.name=conventional"]).protocol.name == "conventional"
    assert recipe_for("glyphs", ["objective.tau=1"]).objective.options == {}
    told = []
    with pytest.raises(DataError, match="neither a folder"):
        shared_recipe("phtos", say=told.append)
    assert not told, "before weights are looked for"


def test_changes_go_to_every_row_and_win():
    base = recipe_for("glyphs")
    changes = ["training.epochs=2", "training.sampler=random", "encoder.dim=32"]
    for row in all_rows(base, only=["contrastive", "vcpa"], overrides=changes):
        assert (row.recipe.training.epochs, row.recipe.training.sampler, row.recipe.encoder.dim) == (2, "random", 32)
    (row,) = all_rows(base, only=["vcpa"], overrides=["objective.tau=0.5"])
    assert row.recipe.objective.options["tau"] == 0.5
    with pytest.raises(RecipeError, match="row 'mpa_dw'"):
        all_rows(base, only=["vcpa", "mpa_dw"], overrides=["objective.sigma_min=0.5"])
    leaky = load_recipe("glyphs/demo", ["objective.name=contrastive", "method.name=profs", "training.sampler=balanced"])
    (row,) = all_rows(leaky, only=["proxy_anchor"])
    assert (row.recipe.objective.name, row.recipe.method.name) == ("proxy_anchor", "plain")


def test_a_row_starts_from_its_base_and_another_name_clears_its_options(tmp_path):
    file = tmp_path / "mine.compare.yml"
    file.write_text(
        "rows:\n"
        "  a: {title: A, objective: {neg_margin: 0.7, name: contrastive}, training: {sampler: balanced}}\n"
        "  b: {base: a, method: {name: ccp, steps_per_problem: 5}, training: {epochs: 30}}\n"
        "  c: {base: b, objective: {name: multi_similarity, alpha: 3}}\n"
    )
    base = recipe_for("glyphs")
    a, b, c = rows_on(base, read_rows(file))
    assert (a.title, b.title, b.base) == ("A", "b", "a")
    assert b.recipe.objective == a.recipe.objective
    assert b.recipe.objective.options == {"neg_margin": 0.7}
    assert c.recipe.objective.options == {"alpha": 3.0}
    assert (a.recipe.training.epochs, c.recipe.training.epochs) == (base.training.epochs, 30)
    assert {row.recipe.training.epochs for row in rows_on(base, read_rows(file), overrides=["training.epochs=2"])} == {
        2
    }


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("- a", "must hold"),
        ("rows: {}", "rows:"),
        ("rows: {a: [1", "YAML"),
        ("rows: {a: 3}", "row 'a'"),
        ("rows: {a: {titel: A}}", "did you mean 'title'"),
        ("rows: {a: {title: A}}", "names no loss"),
        ("rows: {a: {base: b}}", "its base 'b'"),
        ("rows: {a: {objective: proxy_anchor}}", "'objective'"),
        ("rows: {a: {objective: {name: mpa}, protocol: {name: x}}}", "'protocol'"),
        ("recipes: x\nrows: {a: {objective: {name: mpa}}}", "did you mean 'recipe'"),
    ],
)
def test_mistakes_in_a_file_of_rows(tmp_path, text, named):
    file = tmp_path / "mine.compare.yml"
    file.write_text(text)
    with pytest.raises(RecipeError) as error:
        read_rows(file)
    assert named in str(error.value)


def test_one_key_over_several_values_and_one_change_at_a_time():
    recipe = load_recipe("glyphs/demo")
    rows = varied_rows(recipe, "training.batch_size", ["64", "128"])
    assert [row.recipe.training.batch_size for row in rows] == [64, 128]
    assert [row.base for row in varied_rows(recipe, "training.batch_size", ["32", "64"])] == [None, None]
    with pytest.raises(RecipeError, match=r"training\.batch_size"):
        varied_rows(recipe, "training.batch_size", ["64", "64"])
    with pytest.raises(RecipeError, match="did you mean 'batch_size'"):
        varied_rows(recipe, "training.batch_siz", ["64", "128"])
    unchanged, both = ablated_rows(recipe, ["training.batch_size=64&training.learning_rate=5e-5"])
    assert (unchanged.recipe, both.base) == (recipe, "unchanged")
    assert (both.recipe.training.batch_size, both.recipe.training.learning_rate) == (64, 5e-5)
    with pytest.raises(RecipeError, match=r"training\.batch_size=128 changes nothing"):
        ablated_rows(recipe, ["training.batch_size=128"])
