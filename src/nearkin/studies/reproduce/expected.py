"""What to expect of the recipes that come with nearkin: scores as published or measured, and run times."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from nearkin.recipe import Recipe, recipes_folder, shipped_recipes
from nearkin.report.formats import markdown_table
from nearkin.report.table import NOTHING
from nearkin.studies.reproduce.papers import PaperTable, TableRow, items, paper_titles, papers, rows_on, tables_of
from nearkin.studies.reproduce.rows import Settings, published_values, recipe_of
from nearkin.training.recipes import load_recipe
from nearkin.training.time_estimate import in_words


@dataclass(frozen=True)
class ExpectedScore:
    metric: str
    value: float
    """In per cent."""
    spread: float | None
    dim: int
    """Dimensions that it is measured with: those of all models put together, where a paper does that."""

    def __str__(self) -> str:
        """
        >>> str(ExpectedScore("R@1", 67.4, 0.0, 512)), str(ExpectedScore("P@1", 59.56, None, 128))
        ('R@1 67.4 ± 0.0', 'P@1 59.56')
        """
        spread = "" if self.spread is None else f" ± {_with_digits(self.spread)}"
        return f"{self.metric} {_with_digits(self.value)}{spread}"


def _with_digits(value: float) -> str:
    """As many as it has, one at least."""
    return f"{value:.1f}" if round(value, 1) == value else f"{value:g}"


@dataclass(frozen=True)
class RunTime:
    device: str
    seconds: int
    how: str
    """``estimated`` from the first steps by ``benchmarks/run_times.py``, or ``measured``."""

    def __str__(self) -> str:
        return in_words(self.seconds) + ("" if self.how == "estimated" else f" ({self.how})")


@dataclass(frozen=True)
class ListedRecipe:
    """A recipe with what to expect of it."""

    name: str
    summary: str
    command: str
    """How it is trained."""
    scores: tuple[ExpectedScore, ...]
    source: str | None
    """Where the scores are from: ``published``, or ``measured`` with the number of runs and what they lack."""
    row: str | None
    """The command that runs it as a row of its paper's table."""
    run_times: tuple[RunTime, ...]


def listed_recipes() -> list[ListedRecipe]:
    """Every recipe that comes with nearkin.

    >>> [str(score) for score in next(each for each in listed_recipes() if each.name == "vcpa/vcpa").scores]
    ['R@1 69.9', 'R@2 79.0', 'R@4 86.9', 'R@8 92.2']
    """
    times, measured = _by_recipe("run_times.csv"), _by_recipe("measured.csv")
    listed = []
    for name, file in shipped_recipes().items():
        summary, command = (line.removeprefix("# ") for line in file.read_text(encoding="utf-8").splitlines()[:2])
        recipe = load_recipe(file)
        scores: list[ExpectedScore] = []
        source = row = None
        if name in measured:
            for line in measured[name]:
                spread = float(line["spread"]) if line["spread"] else None
                scores.append(ExpectedScore(line["metric"], float(line["value"]), spread, recipe.encoder.dim or 0))
            source = _measured(runs=measured[name][0]["runs"], note=measured[name][0]["note"])
        elif found := _row_of(name, recipe):
            table, published = found
            row = f"nearkin reproduce {table.item.id} --rows {published.name} --data {recipe.data.source}"
            values = published_values(table, published, recipe.data.source)
            scores = [ExpectedScore(each.metric, each.value, each.spread, each.dim) for each in values]
            source = "published" if scores else None
        run_times = [RunTime(line["device"], int(line["seconds"]), line["how"]) for line in times.get(name, ())]
        listed.append(ListedRecipe(name, summary, command, tuple(scores), source, row, tuple(run_times)))
    return listed


def recipes_page(listed: Sequence[ListedRecipe]) -> str:
    """The recipes as Markdown: what ``docs/recipes.md`` holds."""
    devices = list(dict.fromkeys(time.device for each in listed for time in each.run_times))
    head = ["name", "what it is", "expected (%)", *devices, "as a row"]
    lines = [
        "# Recipes",
        "",
        "Read off the files in `recipes/` by `nearkin recipes --markdown > docs/recipes.md`. `nearkin train NAME`",
        "trains one; the second line of its file is the whole command. Expected is what the paper prints for the row",
        "that is this recipe, or what we measured (`results/`). Run times are estimated from a few steps",
        "(`benchmarks/run_times.py`) where they are not measured.",
    ]
    titles = paper_titles()
    for folder, members in itertools.groupby(listed, key=lambda each: each.name.partition("/")[0]):
        title = f"{folder}: {titles[folder]}" if folder in titles else folder
        rows = [head]
        for each in members:
            times = {time.device: str(time) for time in each.run_times}
            row = f"`{each.row}`" if each.row else NOTHING
            rows.append(
                [f"`{each.name}`", each.summary, _in_words(each), *(times.get(d, NOTHING) for d in devices), row]
            )
        lines += ["", f"## {title}", "", markdown_table(rows)]
    return "\n".join(lines) + "\n"


def _in_words(listed: ListedRecipe) -> str:
    texts: dict[int, list[str]] = {}
    for score in sorted(listed.scores, key=lambda score: score.dim):
        texts.setdefault(score.dim, []).append(str(score))
    each = [(f"{dim}-d " if len(texts) > 1 else "") + ", ".join(mine) for dim, mine in texts.items()]
    return f"{'; '.join(each)} ({listed.source})" if listed.source else NOTHING


def _measured(*, runs: str, note: str) -> str:
    """In words.

    >>> _measured(runs="3 seeds", note="30 of its 60 epochs"), _measured(runs="1 seed", note="")
    ('measured, mean of 3 seeds, 30 of its 60 epochs', 'measured, one run')
    """
    number = "one run" if runs.startswith("1 ") else f"mean of {runs}"
    return ", ".join(filter(None, ("measured", number, note)))


def _row_of(name: str, recipe: Recipe) -> tuple[PaperTable, TableRow] | None:
    """The first row of its paper that is the recipe unchanged, if possible one with published values."""
    paper, source = name.partition("/")[0], recipe.data.source
    own = [item for item in items(paper) if not item.same_as] if paper in papers() else []
    tables = [table for item in own for table in tables_of(item) if source in table.data]
    rows = [(table, row) for table in tables for row in rows_on(table, source) if row.recipe == name]
    same = [(table, row) for table, row in rows if recipe_of(table, row, source, Settings()) == recipe]
    return min(same, key=lambda each: not published_values(each[0], each[1], source), default=None)


def _by_recipe(file: str) -> dict[str, list[dict[str, str]]]:
    found: dict[str, list[dict[str, str]]] = {}
    for line in csv.DictReader((recipes_folder() / file).read_text(encoding="utf-8").splitlines()):
        found.setdefault(line["recipe"], []).append(line)
    return found
