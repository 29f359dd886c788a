"""The recipes that come with nearkin, with the scores that we measured and those that papers publish."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping

from nearkin.recipe import Recipe, recipes_folder, shipped_recipes
from nearkin.report.listings import Listing
from nearkin.report.published import DATA_NAMES, SAME_SCORE, Published, look_up
from nearkin.report.table import NOTHING
from nearkin.studies.papers import PaperRow, PaperTable, Settings, items, papers, recipe_of, table_of
from nearkin.studies.tables import BACKBONES
from nearkin.training.recipe_check import load_recipe

SHOWN = ("R@1", "MAP@R")


def list_recipes() -> Listing:
    """Every recipe with what it is, its measured scores, and those of the paper's row that it is or follows.

    >>> (record,) = [record for record in list_recipes().records if record["name"] == "vcpa/vcpa"]
    >>> record["ours"], record["published"], record["row"]
    ('not measured', '69.9', 'nearkin reproduce vcpa/table-1 --rows vcpa --data cub')
    """
    intro = (
        "Files of `recipes/`, for `nearkin train NAME`. Unless noted, a paper's recipe is for CUB and "
        "the protocol is conventional. Scores are R@1/MAP@R in per cent, NMI third where both have it. Ours: means "
        "over runs in `results/`. Published: the paper's row that the recipe is or follows."
    )
    text = (recipes_folder() / "measured.csv").read_text(encoding="utf-8")
    known = {line["recipe"]: line for line in csv.DictReader(text.splitlines())}
    records = []
    for name, file in shipped_recipes().items():
        summary, command = (line.removeprefix("# ") for line in file.read_text(encoding="utf-8").splitlines()[:2])
        recipe, row, line = load_recipe(file), None, known.get(name, {})
        reference = dict(zip(("paper", "table", "method"), line.get("published", "").split(", "), strict=False))
        published = look_up(**reference, dataset=DATA_NAMES.get(recipe.data.source, recipe.data.source))
        if (pair := _row_of(name, recipe)) is not None:
            table, paper_row = pair
            row = f"nearkin reproduce {table.item.id} --rows {paper_row.name} --data {recipe.data.source}"
            published = table.published_values(paper_row, recipe.data.source)
        measured = {score: float(line[score]) for score in (*SHOWN, "NMI") if line.get(score)}
        theirs, remarks = _of_one_size(recipe, published)
        names = shown_scores(measured, theirs)
        records.append(
            {
                "name": name,
                "summary": summary,
                "command": command,
                "row": row,
                "runs": line.get("runs"),
                "scores": {"ours": measured, "published": theirs},
                "ours": _text(measured, names, [line.get("note", "")]) or "not measured",
                "published": _text(theirs, names, remarks),
            }
        )
    return Listing("Recipes", intro, ("name", "summary", "ours", "published"), tuple(records))


def shown_scores(ours: Mapping[str, float], theirs: Mapping[str, float]) -> list[str]:
    """R@1 and MAP@R, and NMI where both sides have it."""
    return [*SHOWN, *["NMI"] * ("NMI" in ours and "NMI" in theirs)]


def _of_one_size(recipe: Recipe, published: list[Published]) -> tuple[dict[str, float], list[str]]:
    """Scores of the recipe's own embedding size or of another, and in words what differs from the recipe."""
    if not published:
        return {}, []
    dims, backbone = {value.dim for value in published}, published[0].backbone
    dim = recipe.encoder.dim if recipe.encoder.dim in dims else max(dims)
    same = recipe.encoder.backbone.replace("_", "").startswith(backbone.replace("-", ""))
    remarks = [BACKBONES.get(backbone, backbone)] * (not same) + [f"{dim}-d"] * (dim != recipe.encoder.dim)
    return {SAME_SCORE.get(value.metric, value.metric): value.value for value in published if value.dim == dim}, remarks


def _text(scores: Mapping[str, float], names: Iterable[str], remarks: Iterable[str]) -> str:
    """
    >>> _text({"R@1": 69.9}, SHOWN, ["ResNet-50"]), _text({"MAP@R": 97.2}, SHOWN, []), _text({"NMI": 64.1}, SHOWN, [])
    ('69.9, ResNet-50', '–/97.2', '')
    """
    texts = [str(round(scores[name], 2)) if name in scores else NOTHING for name in names]
    while texts and texts[-1] == NOTHING:
        texts.pop()
    return ", ".join(["/".join(texts), *filter(None, remarks)]) if texts else ""


def _row_of(name: str, recipe: Recipe) -> tuple[PaperTable, PaperRow] | None:
    """The first row of its paper that is the recipe unchanged, if possible one with published values."""
    paper, source = name.partition("/")[0], recipe.data.source
    original = [item for item in items(paper) if not item.same_as and not item.instead] if paper in papers() else []
    tables = [table for table in map(table_of, original) if source in table.data]
    rows = [(table, row) for table in tables for row in table.rows_on(source) if row.recipe == name]
    same = [(table, row) for table, row in rows if recipe_of(table, row, source, Settings()) == recipe]
    return min(same, key=lambda pair: not pair[0].published_values(pair[1], source), default=None)
