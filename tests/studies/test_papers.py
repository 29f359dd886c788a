"""The files of the papers: complete, agreeing with each other and with what is published; and how their rows run."""

from __future__ import annotations

import csv
import json
import re
import shlex
import statistics
import tomllib
from pathlib import Path

import pytest

from nearkin.catalogue import plot_names
from nearkin.errors import DataError, RecipeError
from nearkin.recipe import fingerprint, recipes_folder, shipped_recipes
from nearkin.report.published import look_up
from nearkin.runs.folder import RunFolder
from nearkin.runs.run import run as train
from nearkin.studies.papers import (
    Settings,
    find_item,
    items,
    list_tables,
    missing_data,
    missing_weights,
    paper_folder,
    papers,
    read_table,
    rows_of,
    table_of,
)
from nearkin.studies.recipe_scores import list_recipes, shown_scores
from nearkin.training import methods
from nearkin.training.build import build_objective
from nearkin.training.recipe_check import load_recipe

TABLES = [item.id for item in items() if item.instead is None and not item.same_as]
RESULTS = Path(__file__).resolve().parents[2] / "results"
FROM_SCRATCH = Settings(weights="none")


@pytest.fixture(scope="module")
def planned():
    """Every row of every table on every data set of its paper."""
    tables = {name: table_of(find_item(name)) for name in TABLES}
    return {name: (table, rows_of(table, table.data, FROM_SCRATCH)) for name, table in tables.items()}


def row_of(table, name, data, settings=FROM_SCRATCH):
    paper = table_of(find_item(table))
    (row,) = rows_of(paper, [data], settings, wanted=[name])
    return row


def test_every_table_and_figure_of_the_papers_is_listed():
    counted = {
        paper: (
            sum(item.key.startswith("table") for item in items(paper)),
            len({re.match(r"figure-\d+", item.key)[0] for item in items(paper) if item.key.startswith("figure")}),
        )
        for paper in papers()
    }
    assert counted == {"ccp": (6, 10), "isa": (4, 11), "profs": (1, 1), "vcpa": (4, 18), "mpa": (8, 3)}
    assert len({item.id for item in items()}) == len(items())
    files = {
        str(file.relative_to(recipes_folder() / "papers")) for file in recipes_folder().glob("papers/*/*.table.yml")
    }
    assert files == {f"{name}.table.yml" for name in TABLES}
    assert table_of(find_item("ccp/figure-8")).item.id == "ccp/table-5"
    with pytest.raises(RecipeError, match="an illustration"):
        table_of(find_item("ccp/figure-1"))


def test_every_published_value_has_a_row_and_every_recipe_is_one(planned):
    shown = {value for _, rows in planned.values() for row in rows for value in row.published}
    assert shown == set(look_up())
    used = {shlex.split(row.command)[2] for _, rows in planned.values() for row in rows if row.command}
    assert used == {name for name in shipped_recipes() if name.partition("/")[0] in papers()}
    for name, (table, rows) in planned.items():
        published = {row.name: row.published for row in table.rows}
        assert all(row.published for row in rows if published[row.name] is not None), name


def test_backbones_dimensions_protocols_and_scores_are_the_published_ones(planned):
    backbones = {"bninception": "bn_inception", "resnetv2-20": "resnetv2_20"}
    for name, (table, rows) in planned.items():
        for row in (row for row in rows if row.command):
            protocol, where = row.recipe.protocol, f"{name}: {row.name} on {row.data}"
            measured = {"P@1", "P@R", "MAP@R", "ksteps", "ms/batch", "ms/batch of 180"}
            measured |= {f"R@{k}" for k in protocol.recall_at} | {f"nDCG@{k}" for k in protocol.ndcg_at}
            measured |= {"NMI", "F1"} if protocol.clustering else set()
            metrics = {value.metric for value in row.published}
            assert metrics & (set(table.metrics) or metrics) <= measured, where
            for value in row.published:
                assert row.recipe.encoder.backbone == backbones.get(value.backbone, value.backbone), where
                folds = protocol.folds if value.protocol == "mlrc-ensemble" else 1
                if row.name != "features":
                    assert row.recipe.encoder.dim * folds == value.dim, where
                usual = "query-gallery" if row.data == "inshop" else "conventional"
                kind = {"conventional": usual, "in-distribution": "in-distribution"}.get(value.protocol, "mlrc")
                assert protocol.name == kind, where
                assert table.mlrc == (kind == "mlrc" and value.metric not in ("ksteps", "ms/batch")), where


def test_every_row_can_be_trained_and_its_command_gives_the_same_recipe(planned):
    checked = set()
    for name, (table, rows) in planned.items():
        folders = [row.path for row in rows]
        assert len(set(folders)) == len(folders), f"{name} runs something twice"
        for row in (row for row in rows if row.command and fingerprint(row.recipe) not in checked):
            checked.add(fingerprint(row.recipe))
            methods.catalogue()[row.recipe.method.name].check(row.recipe)
            normalisation = row.recipe.encoder.normalisation
            build_objective(row.recipe.objective, num_classes=2, dim=4, num_images=8, normalisation=normalisation)
            _, command, recipe, *changes = shlex.split(row.command)
            assert command == ("mlrc" if table.mlrc else "train")
            assert load_recipe(recipe, changes) == row.recipe
    assert len(checked) > 400
    shared = [{row.path for row in planned[name][1]} for name in ("vcpa/table-1", "vcpa/figure-6")]
    assert len(shared[0] & shared[1]) == 4, "Proxy-Anchor and VCPA on CUB and Cars196 are run once for both"


@pytest.mark.parametrize(
    ("table", "row", "data", "changes"),
    [
        (
            *("ccp/table-6", "c2_ccp", "cub"),
            "objective.neg_margin=0.3841 method.proxies_per_class=8 method.pool_size=12 method.proximal_weight=2e-4 "
            "training.batch_size=32 training.images_per_class=4 training.learning_rate=1e-5 training.optimiser=adam "
            "training.evaluate_every_steps=25 encoder.dim=128 encoder.normalisation=ball data.transform=ccp "
            "training.beta2=0.99 method.pool=augmented method.patience=3",
        ),
        ("ccp/table-6", "ms_ccp", "cars", "objective.alpha=14.35 objective.beta=75.83 objective.base=0.66"),
        ("ccp/table-5", "triplet_ccp", "sop", "objective.margin=0.0451 method.proxies_per_class=4 method.pool_size=7"),
        ("ccp/table-5", "c1_xbm", "sop", "objective.size=44800"),
        ("ccp/table-4", "c2_ccp", "cub", "encoder.backbone=resnet50 training.batch_size=96"),
        (
            *("ccp/table-3", "ms_ccp", "inshop"),
            "method.steps_per_problem=1500 protocol.name=query-gallery encoder.dim=512 objective.beta=57.38",
        ),
        (
            *("isa/table-1", "proxy_isa", "cub"),
            "objective.volume=100 objective.hardness=0.15 objective.sensitivity=0.9 training.batch_size=128 "
            "training.optimiser=adam training.epochs=100 encoder.pooling=avg training.warmup_epochs=0 "
            "training.max_grad_value=10 objective.memory_size=55000",
        ),
        ("isa/table-1", "proxy_isa_warm_up", "cars", "training.warmup_epochs=1 objective.sensitivity=0.4"),
        ("isa/table-1", "proxy_isa_as_released", "cub", "objective.as_released=true training.max_grad_value=10"),
        ("isa/table-2", "arcface", "cub", "encoder.dim=512 protocol.name=conventional training.max_grad_value=10"),
        ("isa/table-3", "none", "cars", "objective.name=proxy_anchor encoder.dim=512 protocol.name=conventional"),
        ("isa/table-3", "negatives", "cars", "objective.positive_penalty=uniform"),
        ("isa/figure-11", "proxy_nca_isa", "cars", "objective.weighting.sensitivity=0.4 objective.name=proxy_nca"),
        (
            *("isa/table-1", "proxy_gml", "cars"),
            "objective.proxies_per_class=12 objective.edge_share=0.05 objective.proxy_weight=0.3 training.epochs=50 "
            "training.batch_size=32 training.epsilon=0.01 training.learning_rate=1e-4 training.proxy_lr_multiplier=300 "
            "training.lr_decay_factor=0.1 training.schedule=milestones encoder.freeze_batch_norm_affine=false",
        ),
        (
            *("isa/table-1", "proxy_gml", "sop"),
            "objective.proxies_per_class=1 objective.proxy_weight=0 training.learning_rate=1e-4 "
            "training.optimiser=adam training.proxy_lr_multiplier=3000 training.lr_decay_factor=0.1 "
            "encoder.freeze_batch_norm=false",
        ),
        (
            *("ccp/table-6", "c2_rmsprop", "cars"),
            "objective.neg_margin=0.5409 training.optimiser=rmsprop training.learning_rate=1e-6 training.momentum=0.9 "
            "training.weight_decay=1e-4 training.batch_size=32 encoder.dim=128",
        ),
        ("profs/table-1", "n_pair", "cars", "objective.length_penalty=0.002 training.learning_rate=1e-5"),
        ("isa/table-1", "proxy_anchor", "sop", "training.learning_rate=6e-4 training.optimiser=adamw"),
        ("isa/table-4", "proxy_isa", "cars", "encoder.pooling=avg+max training.optimiser=adamw"),
        ("vcpa/table-1", "vcpa", "sop", "objective.newton_steps=0 objective.tau=0.001 training.epochs=100"),
        ("vcpa/table-1", "vcpa", "inshop", "training.epochs=60 training.lr_decay_factor=0.25"),
        ("vcpa/table-1", "proxy_anchor", "cub", "training.batch_size=180 training.lr_decay_every=10"),
        ("vcpa/figure-8", "moco_pa-momentum-0.999", "cub", "objective.queue_size=900 method.name=momentum"),
        ("mpa/table-6", "mpa_ap", "sop", "objective.proxies_per_class=2 training.batch_size=32 encoder.pooling=gem3"),
        ("mpa/table-5", "mpa", "cars", "training.batch_size=64 objective.tau=0.2 objective.gamma=0.1"),
        (
            *("profs/table-1", "m_profs_hncm", "sop"),
            "training.learning_rate=1e-4 method.hard_negative_classes=true method.occurrences=6 "
            "method.proximal_weight=1e-3 encoder.backbone=googlenet data.transform=profs",
        ),
        ("profs/table-1", "contrastive_hard", "cub", "objective.power=2 method.name=plain"),
    ],
    ids=lambda given: given if len(given) < 30 else "",
)
def test_hyper_parameters_as_the_papers_give_them(table, row, data, changes):
    recipe = row_of(table, row, data).recipe
    assert recipe.data.source == data
    assert load_recipe(recipe.as_mapping(), changes.split()) == recipe


def test_a_warm_up_wherever_proxy_anchors_code_has_one_and_the_paper_does_not_take_it_away(planned):
    """MPA and VCPA build on that code; ISA takes the epoch away on CUB and Cars196, but for table 4.

    ProxyGML has code of its own.
    """
    for name, (_, rows) in planned.items():
        paper, _, table = name.partition("/")
        for row in rows:
            if row.command and paper in ("isa", "mpa", "vcpa") and row.name != "proxy_gml":
                without = paper == "isa" and row.data in ("cub", "cars") and table != "table-4"
                epochs = 0 if without and not row.name.endswith("_warm_up") else 1
                assert row.recipe.training.warmup_epochs == epochs, (name, row.name, row.data)
                assert row.recipe.training.max_grad_value == 10


def test_another_backbone_weights_and_changes_reach_every_row(tmp_path, monkeypatch):
    monkeypatch.delenv("NEARKIN_DATA", raising=False)
    settings = Settings(backbone="small", overrides=("training.epochs=3",))
    row = row_of("mpa/table-4", "mpa", "cub", settings)
    assert (row.recipe.encoder.backbone, row.recipe.encoder.weights, row.recipe.training.epochs) == ("small", None, 3)
    assert row.published[0].value == 69.2
    with pytest.raises(RecipeError, match="row 'mpa'"):
        row_of("mpa/table-4", "mpa", "cub", Settings(overrides=("training.epocs=3",)))
    stored = tmp_path / "weights" / "bn_inception.pth"
    assert "bn_inception" in missing_weights("bn_inception", tmp_path)
    stored.parent.mkdir()
    stored.write_bytes(b"")
    for settings in (Settings(root=str(tmp_path)), Settings(weights=str(stored))):
        assert row_of("mpa/table-4", "mpa", "cub", settings).recipe.encoder.weights == str(stored)
    assert "CUB" in row_of("mpa/table-4", "mpa", "cub", Settings(root=str(tmp_path))).problem
    with pytest.raises(DataError, match=r"'nowhere\.pth'"):
        row_of("mpa/table-4", "mpa", "cub", Settings(weights="nowhere.pth"))
    lite = row_of("mpa/table-4", "mpa", "cub", Settings(backbone="efficientnet_lite0"))
    assert lite.recipe.encoder.weights == "imagenet"
    assert missing_weights("resnetv2_20", None) is missing_weights("hf:facebook/dinov2-small", None) is None
    (tmp_path / "CUB_200_2011").mkdir()
    assert "not whole" in missing_data("cub", tmp_path)
    assert "no/such/folder" in missing_data("no/such/folder", None)
    same = row_of("mpa/table-4", "mpa", "cub", Settings(weights="none", overrides=("training.device=cpu",)))
    assert same.path == row_of("mpa/table-4", "mpa", "cub").path


def test_a_method_that_nearkin_lacks_keeps_its_published_value():
    row = row_of("ccp/table-4", "libc", "cub")
    assert (row.command, row.problem, row.published[0].value) == (None, "nearkin has no LIBC", 70.3)
    table = table_of(find_item("ccp/table-4"))
    rows = rows_of(table, ["cub", "sop"], FROM_SCRATCH, wanted=["c1_xbm"])
    assert [(row.data, row.published[0].dim) for row in rows] == [("sop", 128)], "no line where the table has none"


def test_other_data_get_the_loss_and_the_method_on_a_recipe_that_suits_them(photos):
    table = table_of(find_item("ccp/table-3"))
    settings = Settings(backbone="small")
    rows = rows_of(table, ["glyphs", str(photos)], settings, wanted=["c2_ccp"], say=lambda text: None)
    glyphs, own = (row.recipe for row in rows)
    assert (glyphs.method.name, glyphs.objective.options["neg_margin"]) == ("ccp", 0.3841)
    assert glyphs.training.learning_rate == load_recipe("glyphs/demo").training.learning_rate
    assert (glyphs.training.sampler, glyphs.encoder.normalisation) == ("balanced", "ball")
    assert glyphs.protocol.name == own.protocol.name == "validation"
    assert all(row.published == () and row.problem is None for row in rows)
    assert (own.data.source, own.encoder.weights) == (str(photos), None)


def test_what_is_missing_for_a_table(tmp_path):
    records = {record["table"]: record for record in list_tables(None, Settings(root=str(tmp_path))).records}
    known = records["ccp/table-4"]
    assert (known["rows"], known["missing_data"]) == (37, ["cub", "cars", "sop", "inshop"])
    assert known["missing"] == "data: cub, cars, sop, inshop; weights: resnet50; 13 rows not in nearkin"
    assert records["ccp/figure-1"]["missing"] == "an illustration"
    (swapped,) = [each for each in list_tables("mpa", Settings("small")).records if each["table"] == "mpa/table-4"]
    assert swapped["missing_weights"] == []


def test_varied_rows_are_all_combinations(tmp_path):
    file = tmp_path / "x.table.yml"
    file.write_text(
        "data: [cub]\nsymbols: {K: objective.proxies_per_class, τ: objective.tau}\nrows:\n"
        "  mpa: {title: MPA, published: 'K={K}', vary: {K: [1, 4], τ: [0.1, 0.2]}}\n"
        "  few: {recipe: mpa, vary: [{K: 1, τ: 0.5}, {K: [2, 3], τ: 0.1}]}\n"
    )
    rows = read_table(find_item("mpa/table-4"), file).rows
    assert [tuple(row.at.values()) for row in rows] == [
        *((1, 0.1), (1, 0.2), (4, 0.1), (4, 0.2)),
        *((1, 0.5), (2, 0.1), (3, 0.1)),
    ]
    assert rows[2].name == "mpa-proxies_per_class-4-tau-0.1"
    assert rows[2].changes == {"objective": {"proxies_per_class": 4, "tau": 0.1}}
    assert (rows[2].published, rows[2].title, rows[2].series) == ("K=4", "MPA, K=4, τ=0.1", "MPA")


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("data: [cub]\nrows: {mpa: {titel: x}}", "row 'mpa': unknown key 'titel'"),
        ("data: [cub]\nrow: {}", "'row'"),
        ("data: [cub]\nrows: {mpa: {vary: {K: [1]}}}", "'K'"),
        ("data: [cub]\nrows: {mpa: {}}\ndraw: {kind: pie}", "'kind'"),
        ("data: [cub]\nrows: {mpa: {}}\nall: {trainign: {}}", "'trainign'"),
        ("- a list", "mine.table.yml"),
    ],
)
def test_mistakes_in_a_file_are_named(tmp_path, content, named):
    file = tmp_path / "mine.table.yml"
    file.write_text(content)
    with pytest.raises(RecipeError) as error:
        read_table(find_item("mpa/table-4"), file)
    assert named in str(error.value)


def test_unknown_names_get_a_suggestion():
    with pytest.raises(RecipeError, match="did you mean 'ccp/table-6'"):
        find_item("ccp/tabel-6")
    with pytest.raises(RecipeError, match="'ccpp'"):
        items("ccpp")
    table = table_of(find_item("mpa/table-4"))
    with pytest.raises(RecipeError, match="did you mean 'mpa_ap'"):
        table.chosen_rows(["mpa_pa"])
    assert paper_folder("mpa").is_dir()


def measured():
    """What ``recipes/measured.csv`` says of each recipe."""
    text = (recipes_folder() / "measured.csv").read_text(encoding="utf-8")
    return {line["recipe"]: line for line in csv.DictReader(text.splitlines())}


@pytest.fixture(scope="module")
def listed():
    return {recipe["name"]: recipe for recipe in list_recipes().records}


def test_every_recipe_has_its_measured_score_or_says_that_there_is_none(listed):
    assert list(listed) == list(shipped_recipes())
    known = measured()
    assert known.keys() <= listed.keys()
    assert {name for name, recipe in listed.items() if recipe["ours"] == "not measured"} == listed.keys() - known.keys()
    for name, line in known.items():
        assert listed[name]["ours"].startswith(f"{float(line['R@1'])}/{float(line['MAP@R'])}"), name
        assert line["note"] in listed[name]["ours"], name


def test_published_scores_are_those_of_the_row(listed):
    for name, recipe in listed.items():
        if name.partition("/")[0] in papers():
            assert recipe["row"] is not None, name
            assert bool(recipe["published"]) == (name != "vcpa/moco_pa"), name
    values = look_up(paper="MPA", table="4", method="MPA", dataset="cub")
    assert listed["mpa/mpa"]["scores"]["published"] == {value.metric: value.value for value in values}
    assert listed["mpa/mpa"]["row"] == "nearkin reproduce mpa/table-4 --rows mpa --data cub"
    # Of one model, as the recipe trains it, and not of four concatenated.
    (recall,) = look_up(paper="CCP", table="VI", method="C2-CCP-L", dataset="cub", dim=128, metric="P@1")
    (precision,) = look_up(paper="CCP", table="VI", method="C2-CCP-L", dataset="cub", dim=128, metric="MAP@R")
    assert listed["ccp/c2_ccp"]["published"] == f"{recall.value}/{precision.value}"
    # The paper's network is another than this recipe's.
    assert listed["cub/mpa"]["published"] == "69.2/26.6, BN-Inception"
    assert listed["cub/proxy_anchor"]["published"] == ""


def test_clustering_is_shown_where_both_sides_have_it():
    ours, theirs, names = {"R@1": 62.0, "NMI": 65.1}, {"R@1": 57.7, "NMI": 64.1}, ["R@1", "MAP@R", "NMI"]
    assert shown_scores(ours, theirs) == names
    assert shown_scores(ours, {"R@1": 57.7}) == names[:2]


@pytest.mark.skipif(not RESULTS.is_dir(), reason="a source distribution has no result files")
def test_measured_scores_are_those_of_the_recipes_own_runs():
    every = [json.loads(text) for file in sorted(RESULTS.rglob("*.jsonl")) for text in file.read_text().splitlines()]
    where = tomllib.loads((RESULTS / "recipes.toml").read_text(encoding="utf-8"))
    lines = measured()
    assert lines.keys() == where.keys()
    for name, line in lines.items():
        recipe = load_recipe(name)
        wanted = {key: value for key, value in where[name].items() if key not in ("note", "published")}
        wanted.setdefault("data", recipe.data.source)
        runs = [run for run in every if all(run.get(key) == value for key, value in wanted.items())]
        assert len({(run.get("group"), run["seed"]) for run in runs}) == len(runs) == int(line["runs"]), name
        for run in runs:
            parts = recipe.objective.name, recipe.method.name
            assert (run.get("objective", parts[0]), run.get("method", parts[1])) == parts
            assert run["protocol"] == recipe.protocol.name
            length = recipe.training.max_steps, recipe.training.epochs
            as_long = (
                run.get("steps") == length[0]
                or run.get("epochs") == length[1]
                or f"{length[1]} epochs" in run["recipe"]
            )
            ended_by_itself = recipe.training.early_stop_patience is not None
            assert as_long or ended_by_itself or line["note"], f"{name}: runs shorter than the recipe's need a note"
        for score in ("R@1", "MAP@R"):
            assert line[score] == f"{statistics.mean(100 * run['test'][score] for run in runs):.1f}", name


def test_recipes_whose_covering_radius_is_to_be_drawn_measure_it(planned):
    drawn = [row.recipe for table, rows in planned.values() if "covering" in (table.plots or "") for row in rows]
    named = [item.instead for item in items() if "covering" in (item.instead or "")]
    drawn += [load_recipe(text.removeprefix("train ").partition(",")[0]) for text in named]
    assert len(drawn) == 7
    assert all("covering_radius" in recipe.protocol.measured for recipe in drawn)


def test_a_small_run_of_a_paper_recipe_draws_the_figure_that_it_is_for(squares, nearkin, tmp_path):
    folder, _ = squares
    changes = {"encoder.backbone": "small", "encoder.dim": 5, "encoder.freeze_batch_norm": False}
    changes |= {"encoder.freeze_batch_norm_affine": False, "data.source": str(folder / "squares.csv")}
    changes |= {"data.transform": "digits", "data.image_size": 8, "data.workers": 1, "data.cache": "memory"}
    changes |= {"training.batch_size": 8, "training.max_steps": 4, "training.evaluate_every_steps": 2}
    changes |= {"training.images_per_class": 2, "training.device": "cpu", "protocol.folds": 3}
    train(load_recipe("ccp/c2_ccp").with_changes(changes), RunFolder(tmp_path / "run"))
    code, _, error = nearkin("plot", tmp_path / "run", "--only", "covering")
    assert code == 0, error
    assert list((tmp_path / "run").rglob("covering.png"))


def test_every_figure_that_a_paper_names_is_there():
    named = [table_of(item).plots or "" for item in items() if item.instead is None]
    named += [item.instead.partition("--only ")[2] for item in items() if item.instead]
    assert {name for text in named for name in text.split(",")} - {""} <= set(plot_names())
