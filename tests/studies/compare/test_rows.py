from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from nearkin import losses
from nearkin.errors import RecipeError
from nearkin.runs.folder import RunFolder
from nearkin.runs.run import run
from nearkin.studies.compare.rows import (
    BUDGET,
    SETTABLE,
    base_recipe,
    comparison_rows,
    named_rows,
    read_rows,
    rows_file,
    shared_recipe,
    what_differs,
)
from nearkin.training import methods
from nearkin.training.build import build_objective
from nearkin.training.recipes import load_recipe, validate
from nearkin.training.state import NullObserver

ASKED_FOR = {
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
    "proxy_isa": ("proxy_isa", "plain", "proxy_anchor"),
    "vcpa": ("vcpa", "plain", "proxy_anchor"),
}
BASES = {
    "glyphs": ("glyphs", []),
    "photos": ("cars", ["protocol.name=conventional"]),
    "cub": ("cub", ["protocol.name=conventional"]),
}


@pytest.mark.parametrize("kind", BASES)
def test_the_rows_that_come_with_nearkin(kind):
    data, overrides = BASES[kind]
    base = base_recipe(data, overrides=overrides)
    assert rows_file(base).name == f"{kind}.compare.yml"
    rows = comparison_rows(base)
    assert {row.name: (row.recipe.objective.name, row.recipe.method.name, row.base) for row in rows} == ASKED_FOR
    by_name = {row.name: row for row in rows}
    for row in rows:
        methods.catalogue()[row.recipe.method.name].check(row.recipe)
        kinds = losses.kind(losses.catalogue()[row.recipe.objective.name])
        assert row.recipe.training.sampler == ("random" if kinds == "proxy" else "balanced"), row.name
        if row.recipe.method.name != "plain":
            assert row.recipe.objective == by_name[row.base].recipe.objective, "only the method differs"
    assert rows_file(base, kind) == rows_file(base)


@pytest.mark.parametrize("kind", BASES)
def test_the_budget_is_the_same_for_all_rows(kind):
    data, overrides = BASES[kind]
    base = base_recipe(data, overrides=overrides)
    shared = base.as_mapping()
    for row in comparison_rows(base):
        for section, values in row.recipe.as_mapping().items():
            if section in ("objective", "method"):
                continue
            for key, value in values.items():
                if value != shared[section][key]:
                    assert f"{section}.{key}" in SETTABLE
                    assert key not in ("epochs", "max_steps", "batch_size", "optimiser", "schedule", "seed")


AS_PUBLISHED = ["cub-profs", "cub-isa", "cub-vcpa", "cub-vcpa-tenth", "cub-mpa", "cub-base"]


@pytest.mark.parametrize("name", AS_PUBLISHED)
def test_rows_that_train_as_the_papers_do_differ_from_their_base_by_the_method_or_name_their_budget(name):
    overrides = ["protocol.name=conventional"]
    base = base_recipe("cub", shared_recipe("cub", rows_from=name), overrides)
    encoder = base.encoder
    assert (encoder.backbone, encoder.dim, encoder.freeze_batch_norm) == ("resnet50_v1", 512, True)
    assert (base.training.evaluate_every, base.protocol.name) == (5, "conventional")
    rows = {row.name: row for row in comparison_rows(base, rows=read_rows(named_rows(name)))}
    for row in rows.values():
        methods.catalogue()[row.recipe.method.name].check(row.recipe)
        size = {"num_classes": 5, "dim": 8, "num_images": 20, "normalisation": encoder.normalisation}
        build_objective(row.recipe.objective, **size)
        ours = row.recipe.training
        theirs = base.training if row.base is None else rows[row.base].recipe.training
        same = replace(ours, **{key: getattr(theirs, key) for key in BUDGET}) == theirs
        assert same, "beside the budget, which the table names, training is alike"
        loss = row.base and row.recipe.objective != rows[row.base].recipe.objective
        assert not (loss and ours != theirs), "either another loss or another budget"
    shared = load_recipe(shared_recipe("cub", rows_from=name))
    assert any((row.recipe.objective, row.recipe.method) == (shared.objective, shared.method) for row in rows.values())


def test_a_base_recipe_suits_the_data():
    assert base_recipe().data.source == "glyphs"
    cub = base_recipe("cub")
    assert (cub.encoder.backbone, cub.protocol.name, cub.training.batch_size) == ("resnet50_v1", "validation", 120)
    assert base_recipe("cars").data.source == "cars"
    assert base_recipe("cars").encoder.backbone == "resnet50_v1"
    assert base_recipe("mnist").encoder.backbone == "small"
    photos = base_recipe("my photos/2024", say=lambda _: None)
    assert (photos.data.source, photos.protocol.name) == ("my photos/2024", "validation")
    assert rows_file(photos).name == "photos.compare.yml"
    named = base_recipe("other photos", "cub/proxy_anchor", ["training.epochs=3"])
    assert (named.data.source, named.training.epochs, named.protocol.name) == ("other photos", 3, "validation")
    assert base_recipe(None, "cub/proxy_anchor", ["protocol.name=conventional"]).protocol.name == "conventional"
    assert base_recipe("glyphs", overrides=["objective.tau=1"]).objective.options == {}


def test_changes_go_to_every_row_and_win():
    base = base_recipe("glyphs")
    changes = ["training.epochs=2", "training.sampler=random", "encoder.dim=32"]
    for row in comparison_rows(base, only=["contrastive", "vcpa"], overrides=changes):
        assert (row.recipe.training.epochs, row.recipe.training.sampler, row.recipe.encoder.dim) == (2, "random", 32)
    (row,) = comparison_rows(base, only=["vcpa"], overrides=["objective.tau=0.5"])
    assert row.recipe.objective.options["tau"] == 0.5
    with pytest.raises(RecipeError, match=r"row 'mpa_dw'.*objective\.sigma_min"):
        comparison_rows(base, only=["vcpa", "mpa_dw"], overrides=["objective.sigma_min=0.5"])


def test_the_method_of_the_base_recipe_does_not_leak_into_the_rows():
    base = load_recipe("glyphs/demo", ["objective.name=contrastive", "method.name=profs", "training.sampler=balanced"])
    (row,) = comparison_rows(base, only=["proxy_anchor"])
    assert (row.recipe.objective.name, row.recipe.method.name) == ("proxy_anchor", "plain")


def test_names_are_suggested():
    with pytest.raises(RecipeError, match="did you mean 'c2_ccp'"):
        comparison_rows(base_recipe("glyphs"), only=["c2-ccp"])
    with pytest.raises(RecipeError, match="did you mean 'glyphs'"):
        rows_file(base_recipe("glyphs"), "glyhps")


def test_a_row_starts_from_its_base_and_another_name_clears_its_options(tmp_path):
    file = tmp_path / "mine.compare.yml"
    file.write_text(
        "rows:\n"
        "  a: {title: A, objective: {neg_margin: 0.7, name: contrastive}, training: {sampler: balanced}}\n"
        "  b: {base: a, method: {name: ccp, steps_per_problem: 5}}\n"
        "  c: {base: b, objective: {name: multi_similarity, alpha: 3}}\n"
    )
    a, b, c = comparison_rows(base_recipe("glyphs"), rows=read_rows(file))
    assert (a.title, b.title, b.base) == ("A", "b", "a")
    assert b.recipe.objective == a.recipe.objective
    assert b.recipe.objective.options == {"neg_margin": 0.7}
    assert c.recipe.objective.options == {"alpha": 3.0}
    assert c.recipe.method == b.recipe.method
    assert c.recipe.training.sampler == "balanced"
    assert what_differs(c.recipe, base_recipe("glyphs")) == [
        "multi_similarity alpha=3.0",
        "ccp steps_per_problem=5",
        "training.sampler=balanced",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- a", "must hold keys and values"),
        ("rows: {}", "must hold 'rows:'"),
        ("rows: {a: [1", "not valid YAML"),
        ("rows: {a: 3}", "row 'a': must hold a title"),
        ("rows: {a: {titel: A}}", "did you mean 'title'"),
        ("rows: {a: {title: A}}", "names no loss"),
        ("rows: {a: {base: b}}", "its base 'b' must be a row above it"),
        ("rows: {a: {objective: proxy_anchor}}", "section 'objective' must hold keys"),
        (
            "rows: {a: {objective: {name: mpa}, training: {epochs: 3}}}",
            "training.epochs is the same for all rows: .*or as budget: {epochs: …}",
        ),
        ("rows: {a: {objective: {name: mpa}, encoder: {dim: 3}}}", "encoder.dim is the same for all rows"),
        ("rows: {a: {objective: {name: mpa}, protocol: {name: x}}}", "unknown key 'protocol'"),
        ("rows: {a: {objective: {name: mpa}, budget: {epocs: 3}}}", "row 'a': unknown key 'budget.epocs'.*'epochs'"),
        ("rows: {a: {objective: {name: mpa}, budget: {learning_rate: 1}}}", "unknown key 'budget.learning_rate'"),
        ("rows: {a: {objective: {name: mpa}, budget: 3}}", "section 'budget' must hold keys"),
        ("recipes: x\nrows: {a: {objective: {name: mpa}}}", "did you mean 'recipe'"),
    ],
)
def test_mistakes_in_a_file_of_rows(tmp_path, text, said):
    file = tmp_path / "mine.compare.yml"
    file.write_text(text)
    with pytest.raises(RecipeError, match=said):
        read_rows(file)


def test_a_row_may_say_that_it_has_another_budget(tmp_path):
    file = tmp_path / "mine.compare.yml"
    file.write_text(
        "rows:\n"
        "  a: {objective: {name: proxy_anchor}}\n"
        "  b: {base: a, budget: {epochs: 30, batch_size: 16}}\n"
        "  c: {base: b, objective: {name: vcpa}}\n"
    )
    base, rows = base_recipe("glyphs"), read_rows(file)
    a, b, c = (row.recipe.training for row in comparison_rows(base, rows=rows))
    assert (a.epochs, a.batch_size) == (base.training.epochs, base.training.batch_size)
    assert (b.epochs, b.batch_size) == (c.epochs, c.batch_size) == (30, 16)
    assert "training.epochs=30" in what_differs(comparison_rows(base, rows=rows, only=["b"])[0].recipe, base)
    for row in comparison_rows(base, rows=rows, overrides=["training.epochs=2"]):
        assert row.recipe.training.epochs == 2, "what is asked for all rows wins"


def test_a_key_is_either_free_or_part_of_the_budget():
    known = base_recipe("glyphs").as_mapping()["training"]
    assert set(BUDGET) <= set(known)
    assert not {f"training.{key}" for key in BUDGET} & set(SETTABLE)


ON_TEST = ["protocol.name=conventional", "protocol.monitor_test=true"]
CCP_ON_CUB = [
    ("cub-ccp-conventional", ON_TEST),
    ("cub-ccp-conventional", ["protocol.validation_share=0.25"]),
    ("cub-ccp-lambda", ON_TEST),
    ("cub-ccp-reality-check", ["protocol.name=mlrc", "protocol.fold=0"]),
]


@pytest.mark.parametrize(("name", "overrides"), CCP_ON_CUB)
def test_ccp_on_cub_differs_from_its_base_by_the_method_alone(name, overrides):
    base = base_recipe("cub", shared_recipe("cub", rows_from=name), overrides)
    rows = {row.name: row for row in comparison_rows(base, rows=read_rows(named_rows(name)), overrides=overrides)}
    for row in rows.values():
        validate(row.recipe)
        if row.recipe.method.name == "ccp":
            loss = rows[row.base]
            assert replace(row.recipe, method=loss.recipe.method) == loss.recipe
    assert any(row.recipe.method.name == "ccp" for row in rows.values())


STAND_IN = [
    "encoder.backbone=small",
    "encoder.channels_last=false",
    "data.image_size=16",
    "training.batch_size=8",
    "training.max_steps=4",
    "training.evaluate_every_steps=2",
    "training.device=cpu",
    "protocol.test_share=0.34",
    "protocol.folds=2",
]


@pytest.mark.parametrize(
    "name",
    ["cub/c2", "cub/c2_ccp", "cub/c2_reality_check", "cub/c2_ccp_reality_check", "c1_ccp", "c1_means_ccp", "ms_ccp"],
)
def test_ccp_on_cub_trains_on_what_stands_in_for_it(name, photos, tmp_path):
    source = f"data.source={json.dumps(str(photos))}"
    changes = [source, *STAND_IN] + (["method.warmup_steps=1"] if "ccp" in name else [])
    if name.startswith("cub/"):
        recipe = load_recipe(name, changes)
    else:
        base = base_recipe(None, "cub/c2", [*changes, *ON_TEST])
        rows = read_rows(named_rows("cub-ccp-conventional"))
        (row,) = comparison_rows(base, rows=rows, only=[name], overrides=[*changes, *ON_TEST])
        recipe = row.recipe
    folder = RunFolder(tmp_path / "run")
    scores = run(recipe, folder, NullObserver())
    assert scores.steps == 4
    assert all(math.isfinite(row["loss"]) for row in folder.evaluations()[1:])
    followed = "which training also followed" in scores["selection"]
    assert followed == (recipe.protocol.name == "conventional" and "ccp" in name), "tables name it"
    events = json.loads((folder.path / "events.json").read_text()) if "ccp" in name else [{"step": 1}]
    assert events[0]["step"] == 1


def test_every_method_stands_on_all_levers_of_the_best_recipe():
    overrides = ["protocol.name=conventional"]
    base = base_recipe("cub", shared_recipe("cub", rows_from="cub-best"), overrides)
    rows = {
        each.name: each for each in comparison_rows(base, rows=read_rows(named_rows("cub-best")), overrides=overrides)
    }
    best = load_recipe("cub/best")
    assert rows["proxy_anchor"].recipe.objective == best.objective
    for row in rows.values():
        validate(row.recipe)
        encoder, training = row.recipe.encoder, row.recipe.training
        assert (encoder.last_stride, encoder.dim) == (best.encoder.last_stride, best.encoder.dim) == (1, 2048)
        assert row.recipe.data == best.data
        assert training.ema_decay == best.training.ema_decay
        assert training.l2_sp == best.training.l2_sp
    trained = {(row.recipe.objective.name, row.recipe.method.name) for row in rows.values()}
    assert {
        ("proxy_isa", "plain"),
        ("mpa", "plain"),
        ("vcpa", "plain"),
        ("proxy_anchor", "ccp"),
        ("contrastive", "ccp"),
    } < trained
    assert ("proxy_anchor", "profs") in trained
