"""From a line of a table to a recipe: hyper-parameters as the papers give them, and what stands in the way."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nearkin.errors import DataError, RecipeError
from nearkin.studies.reproduce.papers import chosen_rows, find_item, tables_of
from nearkin.studies.reproduce.rows import Settings, missing_data, missing_weights, planned_rows
from nearkin.studies.reproduce.survey import standing_of
from nearkin.training.recipes import load_recipe


def row_of(table, name, data, settings=None):
    (definition,) = tables_of(find_item(table))
    rows = chosen_rows(definition.rows, [name])
    (row,) = planned_rows(definition, rows, [data], settings or Settings(weights="none"))
    return row


def value(recipe, path):
    here = recipe.as_mapping()
    for step in path.split("."):
        here = here[step]
    return here


@pytest.mark.parametrize(
    ("table", "row", "data", "wanted"),
    [
        (
            "ccp/table-6",
            "c2_ccp",
            "cub",
            {
                "objective.pos_margin": 0.0,
                "objective.neg_margin": 0.3841,
                "method.proxies_per_class": 8,
                "method.pool_size": 12,
                "method.proximal_weight": 2e-4,
                "training.batch_size": 32,
                "training.images_per_class": 4,
                "training.learning_rate": 1e-5,
                "training.optimiser": "adam",
                "training.proxy_lr_multiplier": 1.0,
                "training.evaluate_every_steps": 25,
                "encoder.dim": 128,
                "encoder.normalisation": "ball",
                "data.transform": "ccp",
            },
        ),
        (
            "ccp/table-6",
            "c2_xbm",
            "cars",
            {
                "objective.size": 25 * 32,
                "objective.warmup_steps": 1000,
                "objective.pair_loss.pos_margin": 0.2652,
                "objective.pair_loss.neg_margin": 0.5409,
            },
        ),
        ("ccp/table-6", "ms_ccp", "cars", {"objective.alpha": 14.35, "objective.beta": 75.83, "objective.base": 0.66}),
        (
            "ccp/table-5",
            "triplet_ccp",
            "sop",
            {
                "objective.margin": 0.0451,
                "method.proxies_per_class": 4,
                "method.pool_size": 7,
                "training.evaluate_every_steps": 250,
            },
        ),
        ("ccp/table-5", "soft_triple", "inshop", {"objective.proxies_per_class": 1, "objective.scale": 20.0}),
        ("ccp/table-5", "c1_xbm", "sop", {"objective.size": 1400 * 32}),
        ("ccp/table-4", "c2_ccp", "cub", {"encoder.backbone": "resnet50", "training.batch_size": 96}),
        (
            "ccp/table-3",
            "ms_ccp",
            "inshop",
            {
                "method.steps_per_problem": 1500,
                "protocol.name": "query-gallery",
                "encoder.dim": 512,
                "training.batch_size": 128,
                "objective.beta": 57.38,
            },
        ),
        (
            "ccp/table-6",
            "proxy_anchor",
            "cub",
            {"training.images_per_class": 1, "training.proxy_lr_multiplier": 100.0, "training.warmup_epochs": 1},
        ),
        (
            "isa/table-1",
            "proxy_isa",
            "cub",
            {
                "objective.volume": 100.0,
                "objective.hardness": 0.15,
                "objective.sensitivity": 0.9,
                "objective.search_margin": 0.1,
                "objective.decay": 1.5,
                "training.batch_size": 128,
                "training.optimiser": "adam",
                "training.epochs": 100,
                "encoder.pooling": "avg",
            },
        ),
        (
            "isa/table-1",
            "proxy_anchor",
            "sop",
            {"training.learning_rate": 6e-4, "training.optimiser": "adamw", "training.warmup_epochs": 1},
        ),
        ("isa/table-4", "proxy_isa", "cars", {"encoder.pooling": "avg+max", "training.optimiser": "adamw"}),
        (
            "vcpa/table-1",
            "vcpa",
            "sop",
            {
                "objective.newton_steps": 0,
                "objective.tau": 0.001,
                "training.epochs": 100,
                "training.learning_rate": 6e-4,
                "training.lr_decay_every": 20,
                "training.lr_decay_factor": 0.5,
            },
        ),
        (
            "vcpa/table-1",
            "vcpa",
            "inshop",
            {"training.epochs": 60, "training.lr_decay_factor": 0.25, "protocol.recall_at": [1, 10, 20, 40]},
        ),
        (
            "vcpa/table-1",
            "proxy_anchor",
            "cub",
            {
                "training.batch_size": 180,
                "training.lr_decay_every": 10,
                "training.max_grad_value": 10.0,
                "encoder.freeze_batch_norm": True,
            },
        ),
        ("vcpa/figure-8", "moco_pa-momentum-0.999", "cub", {"objective.queue_size": 900, "method.name": "momentum"}),
        (
            "mpa/table-6",
            "mpa_ap",
            "sop",
            {
                "objective.proxies_per_class": 2,
                "training.batch_size": 32,
                "training.epochs": 100,
                "training.lr_decay_every": 20,
                "encoder.pooling": "gem3",
                "protocol.ndcg_at": [10, 100],
            },
        ),
        ("mpa/table-5", "mpa", "cars", {"training.batch_size": 64, "objective.tau": 0.2, "objective.gamma": 0.1}),
        (
            "profs/table-1",
            "m_profs_hncm",
            "sop",
            {
                "training.learning_rate": 1e-4,
                "training.head_lr_multiplier": 10.0,
                "method.hard_negative_classes": True,
                "method.occurrences": 6,
                "method.proximal_weight": 1e-3,
                "encoder.backbone": "googlenet",
                "data.transform": "profs",
            },
        ),
        ("profs/figure-1", "c_profs-steps_per_projection-30", "cub", {"training.images_per_class": 2}),
        (
            "profs/table-1",
            "c_profs_hncm",
            "cub",
            {
                "objective.power": 2,
                "objective.reduction": "pairs",
                "objective.hard_pairs": True,
                "method.name": "profs",
                "training.images_per_class": 2,
                "training.beta2": 0.99,
            },
        ),
        ("profs/table-1", "contrastive_hard", "cub", {"objective.power": 2, "method.name": "plain"}),
        ("profs/table-1", "margin_hard", "cub", {"objective.hard_pairs": True, "method.name": "plain"}),
        ("profs/table-1", "triplet_hard", "cub", {"objective.hard_pairs": True, "method.name": "plain"}),
        (
            "isa/table-1",
            "proxy_anchor",
            "cub",
            {"training.lr_decay_every": 10, "encoder.freeze_batch_norm_affine": True},
        ),
        ("isa/table-1", "proxy_isa", "cars", {"training.lr_decay_every": 20, "training.lr_decay_factor": 0.5}),
        ("isa/table-1", "proxy_isa", "sop", {"training.lr_decay_factor": 0.25, "encoder.freeze_batch_norm": False}),
        ("ccp/table-6", "c2_ccp", "cub", {"training.beta2": 0.99, "method.pool": "augmented", "method.patience": 3}),
        ("ccp/table-6", "ms", "cub", {"objective.mining": False}),
        ("ccp/table-4", "ms_ccp", "cub", {"objective.mining": False, "training.weight_decay": 4e-4}),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_hyper_parameters_as_the_papers_give_them(table, row, data, wanted):
    recipe = row_of(table, row, data).recipe
    assert recipe.data.source == data
    assert {path: value(recipe, path) for path in wanted} == wanted


def test_another_backbone_and_changes_reach_every_row():
    settings = Settings(backbone="small", overrides=("training.epochs=3",))
    row = row_of("mpa/table-4", "mpa", "cub", settings)
    assert (row.recipe.encoder.backbone, row.recipe.encoder.weights, row.recipe.training.epochs) == ("small", None, 3)
    assert row.published[0].value == 69.2
    assert "encoder.backbone=small" in row.command
    with pytest.raises(RecipeError, match=r"row 'mpa': .*did you mean 'epochs'"):
        row_of("mpa/table-4", "mpa", "cub", Settings(overrides=("training.epocs=3",)))


def test_weights_are_given_found_or_missed(tmp_path):
    kept = tmp_path / "weights" / "bn_inception.pth"
    kept.parent.mkdir()
    nothing = row_of("mpa/table-4", "mpa", "cub", Settings(root=str(tmp_path)))
    assert "was not found below" in nothing.problem
    assert missing_weights("bn_inception", tmp_path).startswith("no ImageNet weights for bn_inception: give them with")
    kept.write_bytes(b"")
    assert missing_weights("bn_inception", tmp_path) is None
    assert row_of("mpa/table-4", "mpa", "cub", Settings(root=str(tmp_path))).recipe.encoder.weights == str(kept)
    given = row_of("mpa/table-4", "mpa", "cub", Settings(weights=str(kept)))
    assert given.recipe.encoder.weights == str(kept)
    with pytest.raises(DataError, match=r"'nowhere\.pth', which is not a file"):
        row_of("mpa/table-4", "mpa", "cub", Settings(weights="nowhere.pth"))
    lite = row_of("mpa/table-4", "mpa", "cub", Settings(backbone="efficientnet_lite0"))
    assert lite.recipe.encoder.weights == "imagenet"
    assert missing_weights("resnetv2_20", None) is None
    assert missing_weights("hf:facebook/dinov2-small", None) is None


def test_data_that_are_not_there_or_not_whole_are_named(tmp_path, monkeypatch):
    monkeypatch.delenv("NEARKIN_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    assert missing_data("glyphs", None) is None
    assert "--data-root" in missing_data("cub", None)
    (tmp_path / "CUB_200_2011").mkdir()
    assert "is not whole" in missing_data("cub", tmp_path)
    assert missing_data("no/such/folder", None) == "there is no no/such/folder"


def test_a_method_that_nearkin_lacks_keeps_its_published_figure():
    row = row_of("ccp/table-4", "libc", "cub")
    assert (row.recipe, row.problem, row.published[0].value) == (None, "nearkin has no LIBC", 70.3)


def test_a_row_has_no_line_where_the_table_has_none():
    (table,) = tables_of(find_item("ccp/table-4"))
    rows = planned_rows(table, chosen_rows(table.rows, ["c1_xbm"]), ["cub", "sop"], Settings(weights="none"))
    assert [(row.data, row.published[0].dim) for row in rows] == [("sop", 128)]


def test_other_data_get_the_loss_and_the_method_on_a_recipe_that_suits_them(photos):
    said = []
    (table,) = tables_of(find_item("ccp/table-3"))
    rows = planned_rows(
        table, chosen_rows(table.rows, ["c2_ccp"]), ["glyphs", str(photos)], Settings(backbone="small"), say=said.append
    )
    glyphs, own = (row.recipe for row in rows)
    demo = load_recipe("glyphs/demo")
    assert (glyphs.method.name, glyphs.objective.options["neg_margin"]) == ("ccp", 0.3841)
    assert glyphs.training.learning_rate == demo.training.learning_rate
    assert (glyphs.training.sampler, glyphs.encoder.normalisation) == ("balanced", "ball")
    assert glyphs.protocol.name == own.protocol.name == "validation"
    assert all(row.published == () and row.problem is None for row in rows)
    assert own.data.source == str(photos)
    assert own.encoder.weights is None


def test_a_stand_in_is_read_in_the_place_of_the_papers_data(photos):
    settings = Settings(stand_ins={"mnist": str(photos)})
    row = row_of("ccp/figure-2", "proxies", "mnist", settings)
    assert row.recipe.data.source == str(photos)
    assert row.published == (), "the paper's figure is not for these data"
    assert row.problem is None


def test_the_folder_follows_the_recipe_and_not_what_does_not_matter(tmp_path):
    names = {
        key: row_of("mpa/table-4", "mpa", "cub", Settings(weights="none", **given)).folder_in(tmp_path)
        for key, given in {
            "plain": {},
            "device": {"overrides": ("training.device=cpu", "data.workers=1")},
            "root": {"root": str(Path("elsewhere"))},
            "epochs": {"overrides": ("training.epochs=3",)},
        }.items()
    }
    assert names["plain"] == names["device"] == names["root"]
    assert names["plain"] != names["epochs"]
    assert names["plain"].startswith("cub/mpa-")


def test_what_stands_in_the_way_of_a_table(tmp_path):
    settings = Settings(root=str(tmp_path))
    standing = standing_of(find_item("ccp/table-4"), settings)
    assert (standing.rows, standing.not_in_nearkin) == (35, 13)
    assert standing.in_the_way == "data: cub, cars, sop, inshop; weights: resnet50; 13 rows not in nearkin"
    assert standing_of(find_item("ccp/figure-1"), settings).in_the_way == "an illustration"
    assert standing_of(find_item("ccp/figure-2"), settings).missing_weights == ()
    swapped = standing_of(find_item("mpa/table-4"), Settings(backbone="small", root=str(tmp_path)))
    assert json.dumps(swapped.in_the_way) == '"data: cub"'
