"""The papers' tables and figures: which there are, and the rows of those that can be run.

In ``recipes/papers/<paper>/`` the file ``paper.yml`` lists the tables and figures, ``<table>.table.yml`` holds the rows
of one, a recipe is a method with the paper's hyper-parameters for CUB, and ``data.yml`` what other data sets change.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nearkin.errors import RecipeError, did_you_mean, mistakes_in
from nearkin.recipe import recipes_folder
from nearkin.recipe.reading import PAPERS, check_keys, layered, read_yaml
from nearkin.report.published import DATA_NAMES, Published, look_up
from nearkin.studies.study import chosen_names
from nearkin.training.recipes import load_recipe

SECTIONS = ("data", "encoder", "objective", "method", "training", "protocol")

Changes = Mapping[str, Any]
"""Sections of a recipe that are put on top of another."""


@dataclass(frozen=True)
class Item:
    """A table or a figure of a paper."""

    paper: str
    """The paper's key, such as ``ccp``; also its folder."""
    key: str
    title: str
    instead: str | None = None
    """What to do, or why there is nothing to do, where there are no rows to run."""
    same_as: tuple[str, ...] = ()
    """Keys of the tables whose rows these are."""

    @property
    def id(self) -> str:
        return f"{self.paper}/{self.key}"


@dataclass(frozen=True)
class PaperRow:
    """A row of a table before a data set is chosen."""

    name: str
    title: str
    recipe: str
    """Name of the recipe that it starts from, such as ``ccp/c2_ccp``."""
    group: str
    """The row of the file that it is a point of; its own name where nothing is varied."""
    series: str
    """What a figure calls the line that it is a point of."""
    published: str | None = None
    """The method's name in the published table."""
    changes: Changes = field(default_factory=dict)
    changes_on: Mapping[str, Changes] = field(default_factory=dict)
    """Further changes for single data sets."""
    only: tuple[str, ...] | None = None
    """The data sets that it has a line for; None for all of the table."""
    at: Mapping[str, Any] = field(default_factory=dict)
    """Values of what the figure varies, by symbol."""
    missing: str | None = None
    """Why nearkin cannot run it at all."""


@dataclass(frozen=True)
class PaperTable:
    """A table or figure that can be run."""

    item: Item
    data: tuple[str, ...]
    rows: tuple[PaperRow, ...]
    published: str | None = None
    """Its name in the list of published values."""
    mlrc: bool = False
    """Whether a row is a whole reality check, several models on class folds."""
    metrics: tuple[str, ...] = ()
    """Scores to show; empty for those that are published."""
    changes: Changes = field(default_factory=dict)
    """Changes to every row."""
    changes_on: Mapping[str, Changes] = field(default_factory=dict)
    draw: Mapping[str, Any] = field(default_factory=dict)
    """The ``metric`` of its figure; where something is varied the symbols on the horizontal axes (``x``), a symbol with
    a line for each value (``series``), and symbols whose values are drawn at equal distances (``even``)."""
    plots: str | None = None
    """Figures of ``nearkin plot`` that show what the paper's figure does."""

    @property
    def heading(self) -> str:
        return f"{self.item.paper.upper()}, {self.item.key.replace('-', ' ', 1)}: {self.item.title}"

    def rows_on(self, data: str) -> list[PaperRow]:
        """The rows for a data set; data that are not the paper's have all of them."""
        return [row for row in self.rows if row.only is None or data in row.only or data not in self.data]

    def chosen_rows(self, wanted: Sequence[str] | None) -> list[PaperRow]:
        """The rows with these names; the name of a varied row stands for all its points.

        >>> (table,) = tables_of(find_item("mpa/table-7"))
        >>> len(table.chosen_rows(["mpa"])), len(table.chosen_rows(["mpa-proxies_per_class-8"]))
        (5, 1)
        """
        if wanted is None:
            return list(self.rows)
        known = list({name: None for row in self.rows for name in (row.group, row.name)})
        names = chosen_names(wanted, known)
        return [row for row in self.rows if row.name in names or row.group in names]

    def published_values(self, row: PaperRow, data: str) -> list[Published]:
        """What the paper reports for a row on a data set."""
        if self.published is None or row.published is None or data not in self.data:
            return []
        paper, dataset = self.item.paper.upper(), DATA_NAMES.get(data, data)
        return look_up(paper=paper, table=self.published, method=row.published, dataset=dataset)

    def recipe_of(self, row: PaperRow, data: str) -> dict[str, Any]:
        """The paper's recipe of a row on a data set, as a mapping; on other data than the paper's, that for CUB."""
        known = _load(paper_folder(self.item.paper) / "data.yml").get(data, {}) if data in self.data else {}
        of_data = [known.get("all", {}), known.get(row.recipe.rpartition("/")[2], {})]
        shared = [self.changes, self.changes_on.get(data, {})]
        return functools.reduce(layered, [*of_data, *shared, *self.row_changes(row, data)], shipped_recipe(row.recipe))

    def row_changes(self, row: PaperRow, data: str) -> list[Changes]:
        """What the row itself changes."""
        return [row.changes, row.changes_on.get(data, {})]


def papers() -> list[str]:
    """Keys of the papers.

    >>> papers()
    ['ccp', 'isa', 'mpa', 'profs', 'vcpa']
    """
    return sorted(file.parent.name for file in recipes_folder().glob(f"{PAPERS}/*/paper.yml"))


def paper_folder(paper: str) -> Path:
    return recipes_folder() / PAPERS / paper


def items(paper: str | None = None) -> list[Item]:
    """Every table and figure of one paper, or of all.

    >>> [item.id for item in items("profs")]
    ['profs/table-1', 'profs/figure-1']
    """
    if paper is not None and paper not in papers():
        raise RecipeError(f"no paper {paper!r}: {did_you_mean(paper, papers())}")
    return [
        Item(name, str(key), entry["title"], entry.get("instead"), tuple(entry.get("same_as", ())))
        for name in (papers() if paper is None else [paper])
        for key, entry in _load(paper_folder(name) / "paper.yml")["items"].items()
    ]


def paper_titles() -> dict[str, str]:
    """The papers' own titles by key."""
    return {name: str(_load(paper_folder(name) / "paper.yml")["title"]) for name in papers()}


def find_item(given: str) -> Item:
    """A table or figure by its id, such as ``mpa/table-4``."""
    known = {item.id: item for item in items()}
    if given not in known:
        raise RecipeError(f"no table or figure {given!r}: {did_you_mean(given, known)}")
    return known[given]


def tables_of(item: Item) -> list[PaperTable]:
    """The tables to run for an item: its own, those it repeats, or none where there is nothing to run.

    >>> [table.item.id for table in tables_of(find_item("ccp/table-2"))]
    ['ccp/table-5', 'ccp/table-6']
    """
    if item.same_as:
        return [table for key in item.same_as for table in tables_of(find_item(f"{item.paper}/{key}"))]
    if item.instead is not None:
        return []
    return [read_table(item, paper_folder(item.paper) / f"{item.key}.table.yml")]


def read_table(item: Item, file: Path) -> PaperTable:
    """The rows and settings that a file gives for a table."""
    content = _load(file)
    with mistakes_in(file.name):
        check_keys(
            content, {"published", "data", "mlrc", "metrics", "symbols", "all", "all_by_data", "draw", "plots", "rows"}
        )
        check_keys(content.get("draw", {}), {"x", "series", "metric", "even"})
        rows: list[PaperRow] = []
        for name, row in content["rows"].items():
            with mistakes_in(f"row {name!r}"):
                rows += _expand(str(name), row, item.paper, content.get("symbols", {}))
        return PaperTable(
            item=item,
            data=tuple(content["data"]),
            rows=tuple(rows),
            published=content.get("published"),
            mlrc=content.get("mlrc", False),
            metrics=tuple(content.get("metrics", ())),
            changes=_sections(content.get("all", {})),
            changes_on={name: _sections(given) for name, given in content.get("all_by_data", {}).items()},
            draw=content.get("draw", {}),
            plots=content.get("plots"),
        )


def _expand(name: str, row: Any, paper: str, symbols: Mapping[str, str]) -> Iterator[PaperRow]:
    """A row of the file, or one for every point where it varies something."""
    keys = {"title", "series", "published", "recipe", "at", "vary", "points", "only", "by_data", "missing"}
    check_keys(row, {*keys, *SECTIONS})
    recipe, published = row.get("recipe", name), row.get("published")
    title = str(row.get("title", published or name))
    changes = {key: row[key] for key in SECTIONS if key in row}
    shared: dict[str, Any] = {
        "recipe": recipe if "/" in recipe else f"{paper}/{recipe}",
        "group": name,
        "series": str(row.get("series", title)),
        "only": tuple(row["only"]) if "only" in row else None,
        "changes_on": {data: _sections(given) for data, given in row.get("by_data", {}).items()},
        "missing": row.get("missing"),
    }
    if "vary" not in row and "points" not in row:
        yield PaperRow(name, title, published=published, changes=changes, at=dict(row.get("at", {})), **shared)
        return
    for point in _points(row, symbols):
        parts = [f"{symbols[symbol].rpartition('.')[2]}-{text_of(value)}" for symbol, value in point.items()]
        where = ", ".join(f"{symbol}={text_of(value)}" for symbol, value in point.items())
        method = published.get(where) if isinstance(published, Mapping) else published
        for symbol, value in point.items():
            method = None if method is None else str(method).replace(f"{{{symbol}}}", text_of(value))
        varied = [_nested(symbols[symbol], value) for symbol, value in point.items()]
        yield PaperRow(
            "-".join([name, *parts]),
            f"{title}, {where}",
            published=method,
            changes=functools.reduce(layered, varied, changes),
            at=point,
            **shared,
        )


def _points(row: Mapping[str, Any], symbols: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Every combination of the values that ``vary`` gives, or that each of ``points`` gives."""
    for given in [row["vary"]] if "vary" in row else row["points"]:
        for symbol in given:
            if symbol not in symbols:
                raise RecipeError(f"varies {symbol!r}, which the file's 'symbols' do not name")
        axes = (values if isinstance(values, list) else [values] for values in given.values())
        for values in itertools.product(*(map(_number, axis) for axis in axes)):
            yield dict(zip(given, values, strict=True))


def _nested(path: str, value: Any) -> dict[str, Any]:
    """``{"objective": {"tau": 1}}`` of ``objective.tau`` and 1."""
    first, _, rest = path.partition(".")
    return {first: _nested(rest, value) if rest else value}


def text_of(value: Any) -> str:
    """A value as it is written on a command line and in a title.

    >>> text_of(0.0002), text_of(8), text_of(None), text_of([1, 10]), text_of(False)
    ('0.0002', '8', 'null', '[1,10]', 'false')
    """
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, float):
        return f"{value:.10g}"
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(text_of, value))}]"
    return str(value)


def _number(value: Any) -> Any:
    """YAML takes ``1e-4`` for text."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _sections(given: Any) -> dict[str, Any]:
    check_keys(given, SECTIONS, "sections of a recipe")
    return dict(given)


@functools.cache
def shipped_recipe(name: str) -> dict[str, Any]:
    """A recipe as a mapping, read once: a table starts from the same few again and again."""
    return load_recipe(name).as_mapping()


@functools.cache
def _load(file: Path) -> dict[str, Any]:
    """Kept once read: a list of all tables would read a paper's files hundreds of times."""
    return read_yaml(file)
