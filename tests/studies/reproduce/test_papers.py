"""The files of the papers: complete, agreeing with each other and with what is published."""

from __future__ import annotations

import re
import shlex

import pytest

from nearkin.errors import RecipeError
from nearkin.recipe import shipped_recipes
from nearkin.recipe.identity import fingerprint
from nearkin.report.published import look_up
from nearkin.studies.reproduce.papers import (
    chosen_rows,
    find_item,
    items,
    paper_folder,
    papers,
    read_table,
    rows_file,
    tables_of,
)
from nearkin.studies.reproduce.rows import Settings, planned_rows
from nearkin.training import methods
from nearkin.training.build import build_objective
from nearkin.training.recipes import load_recipe

TABLES = [item.id for item in items() if item.instead is None and not item.same_as]


@pytest.fixture(scope="module")
def planned():
    """Every row of every table on every data set of its paper."""
    found = {}
    for name in TABLES:
        (table,) = tables_of(find_item(name))
        found[name] = (table, planned_rows(table, table.rows, table.data, Settings(weights="none")))
    return found


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


def test_every_file_of_rows_belongs_to_a_table_and_the_other_way_round():
    files = {file for paper in papers() for file in paper_folder(paper).glob("*.table.yml")}
    assert files == {rows_file(find_item(name)) for name in TABLES}


def test_every_recipe_of_a_paper_is_a_row_somewhere(planned):
    used = {row.row.recipe for _, rows in planned.values() for row in rows if row.recipe is not None}
    assert used == {name for name in shipped_recipes() if name.partition("/")[0] in papers()}


def test_every_published_figure_has_a_row(planned):
    shown = {figure for _, rows in planned.values() for row in rows for figure in row.published}
    assert shown == set(look_up())


def test_rows_that_name_a_published_method_find_its_figures(planned):
    for name, (_, rows) in planned.items():
        for row in rows:
            if row.row.published is not None:
                assert row.published, f"{name}: {row.row.name} on {row.data}"


def test_what_is_published_is_measured(planned):
    for name, (table, rows) in planned.items():
        for row in rows:
            if row.recipe is None:
                continue
            protocol = row.recipe.protocol
            measured = {"P@1", "P@R", "MAP@R", "ksteps", "ms/batch", "ms/batch of 180"}
            measured |= {f"R@{k}" for k in protocol.recall_at} | {f"nDCG@{k}" for k in protocol.ndcg_at}
            measured |= {"NMI", "F1"} if protocol.clustering else set()
            asked = {figure.metric for figure in row.published}
            asked &= set(table.metrics) or asked
            assert asked <= measured, f"{name}: {row.row.name} on {row.data}"


def test_backbones_dimensions_and_protocols_are_the_published_ones(planned):
    backbones = {"bninception": "bn_inception", "resnetv2-20": "resnetv2_20"}
    for name, (table, rows) in planned.items():
        for row in rows:
            for figure in row.published if row.recipe is not None else ():
                where = f"{name}: {row.row.name} on {row.data}"
                assert row.recipe.encoder.backbone == backbones.get(figure.backbone, figure.backbone), where
                folds = row.recipe.protocol.folds if figure.protocol in ("mlrc", "mlrc-ensemble") else 1
                if row.row.name != "features":
                    assert row.recipe.encoder.dim * folds == figure.dim, where
                usual = "query-gallery" if row.data == "inshop" else "conventional"
                kind = {"conventional": usual, "in-distribution": "in-distribution"}.get(figure.protocol, "mlrc")
                assert row.recipe.protocol.name == kind, where
                assert table.mlrc == (kind == "mlrc" and figure.metric not in ("ksteps", "ms/batch")), where


def test_every_row_is_a_recipe_that_can_be_followed_and_printed(planned):
    checked = set()
    for _, rows in planned.values():
        for row in rows:
            if row.recipe is None or fingerprint(row.recipe) in checked:
                continue
            checked.add(fingerprint(row.recipe))
            methods.catalogue()[row.recipe.method.name].check(row.recipe)
            normalisation = row.recipe.encoder.normalisation
            build_objective(row.recipe.objective, num_classes=2, dim=4, num_images=8, normalisation=normalisation)
            _, command, name, *changes = shlex.split(row.command)
            assert command == ("mlrc" if row.mlrc else "train")
            assert load_recipe(name, changes) == row.recipe
    assert len(checked) > 400


def test_tables_do_not_run_the_same_thing_twice(planned, tmp_path):
    for name, (_, rows) in planned.items():
        folders = [row.folder_in(tmp_path) for row in rows if row.recipe is not None]
        assert len(set(folders)) == len(folders), name
    shared = [{row.folder_in(tmp_path) for row in planned[name][1]} for name in ("vcpa/table-1", "vcpa/figure-6")]
    assert len(shared[0] & shared[1]) == 4, "Proxy-Anchor and VCPA on CUB and Cars196 are run once for both"


def test_what_repeats_another_table_leads_there():
    assert [table.item.id for table in tables_of(find_item("ccp/table-2"))] == ["ccp/table-5", "ccp/table-6"]
    assert tables_of(find_item("ccp/figure-1")) == []


def test_varied_rows_are_all_combinations(tmp_path):
    file = tmp_path / "x.table.yml"
    file.write_text(
        "data: [cub]\nsymbols: {K: objective.proxies_per_class, τ: objective.tau}\nrows:\n"
        "  mpa: {title: MPA, published: 'K={K}', vary: {K: [1, 4], τ: [1e-1, 0.2]}}\n"
        "  few: {recipe: mpa, points: [{K: 1, τ: 0.5}, {K: [2, 3], τ: 0.1}]}\n"
    )
    rows = read_table(find_item("mpa/table-4"), file).rows
    assert [row.name for row in rows[:2]] == ["mpa-proxies_per_class-1-tau-0.1", "mpa-proxies_per_class-1-tau-0.2"]
    assert [row.at for row in rows] == [
        {"K": 1, "τ": 0.1},
        {"K": 1, "τ": 0.2},
        {"K": 4, "τ": 0.1},
        {"K": 4, "τ": 0.2},
        {"K": 1, "τ": 0.5},
        {"K": 2, "τ": 0.1},
        {"K": 3, "τ": 0.1},
    ]
    assert rows[2].changes == {"objective": {"proxies_per_class": 4, "tau": 0.1}}
    assert (rows[2].published, rows[2].title, rows[2].series) == ("K=4", "MPA, K=4, τ=0.1", "MPA")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("data: [cub]\nrows: {mpa: {titel: x}}", "row 'mpa': unknown key 'titel': did you mean 'title'"),
        ("data: [cub]\nrow: {}", "unknown key 'row': did you mean 'rows'"),
        ("data: [cub]\nrows: {mpa: {vary: {K: [1]}}}", "varies 'K', which the file's 'symbols' do not name"),
        ("data: [cub]\nrows: {mpa: {}}\ndraw: {kind: pie}", "unknown kind of figure 'pie'"),
        ("data: [cub]\nrows: {mpa: {}}\nall: {trainign: {}}", "unknown key 'trainign': did you mean 'training'"),
        ("- a list", "must hold keys and values"),
        ("rows: [", "not valid YAML"),
    ],
)
def test_mistakes_in_a_file_are_named(tmp_path, content, said):
    file = tmp_path / "mine.table.yml"
    file.write_text(content)
    with pytest.raises(RecipeError, match=re.escape(said)):
        read_table(find_item("mpa/table-4"), file)


def test_unknown_names_get_a_suggestion():
    with pytest.raises(RecipeError, match="did you mean 'ccp/table-6'"):
        find_item("ccp/tabel-6")
    with pytest.raises(RecipeError, match="no paper 'ccpp'"):
        items("ccpp")
    (table,) = tables_of(find_item("mpa/table-4"))
    with pytest.raises(RecipeError, match="did you mean 'mpa_ap'"):
        chosen_rows(table.rows, ["mpa_pa"])
