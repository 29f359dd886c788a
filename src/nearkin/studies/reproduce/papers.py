"""What the papers contain: every table and figure, and for those that can be run the rows.

In ``recipes/papers/<paper>/`` the file ``paper.yml`` lists the tables and figures, ``<table>.table.yml`` holds the rows
of one, a recipe is a method with the paper's hyper-parameters for CUB, and ``data.yml`` what other data sets change.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from nearkin.errors import RecipeError, did_you_mean, mistakes_in
from nearkin.recipe import recipes_folder
from nearkin.recipe.reading import PAPERS, check_keys, layered, read_yaml
from nearkin.studies.study import chosen_names

ENDING = ".table.yml"
SECTIONS = ("data", "encoder", "objective", "method", "training", "protocol")

Value = float | int | str
Kind = Literal["scores", "lines", "plane", "bars", "steps", "curves", "digits"]


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
class TableRow:
    """A line of a table before a data set is chosen."""

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
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Sections of a recipe that are put on top."""
    changes_on: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The same for single data sets."""
    only: tuple[str, ...] | None = None
    """The data sets that it has a line for; None for all of the table."""
    at: Mapping[str, Value] = field(default_factory=dict)
    """Values of what the figure varies, by symbol."""
    missing: str | None = None
    """Why nearkin cannot run it at all."""


@dataclass(frozen=True)
class Drawing:
    """How a figure is drawn."""

    kind: Kind = "scores"
    x: tuple[str, ...] = ()
    """Symbols on the horizontal axis, a panel for each."""
    y: str | None = None
    series: str | None = None
    """A symbol with a line for each of its values; else each row is a line."""
    metric: str = "R@1"
    even: tuple[str, ...] = ()
    """Symbols whose values are drawn at equal distances, as powers of ten are."""


@dataclass(frozen=True)
class PaperTable:
    """A table or figure that can be run."""

    item: Item
    data: tuple[str, ...]
    rows: tuple[TableRow, ...]
    published: str | None = None
    """Its name in the list of published values."""
    mlrc: bool = False
    """Whether a row is a whole reality check, several models on class folds."""
    metrics: tuple[str, ...] = ()
    """Scores to show; empty for those that are published."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Sections of a recipe that are put on top of every row."""
    changes_on: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    draw: Drawing = field(default_factory=Drawing)


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
    found = []
    for name in papers() if paper is None else [paper]:
        for key, entry in _load(paper_folder(name) / "paper.yml")["items"].items():
            same_as = tuple(entry.get("same_as", ()))
            found.append(Item(name, str(key), entry["title"], entry.get("instead"), same_as))
    return found


def paper_titles() -> dict[str, str]:
    """The papers' own titles by key."""
    return {name: str(_load(paper_folder(name) / "paper.yml")["title"]) for name in papers()}


def find_item(given: str) -> Item:
    """A table or figure by its id.

    >>> find_item("mpa/table-4").title
    'Losses on CUB'
    >>> find_item("mpa/table-44")
    Traceback (most recent call last):
    ...
    nearkin.errors.RecipeError: no table or figure 'mpa/table-44': did you mean 'mpa/table-4'?
    """
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
    return [read_table(item, rows_file(item))]


def rows_file(item: Item) -> Path:
    return paper_folder(item.paper) / f"{item.key}{ENDING}"


def read_table(item: Item, file: str | Path) -> PaperTable:
    """The rows and settings that a file gives for a table."""
    content = _load(Path(file))
    with mistakes_in(Path(file).name):
        check_keys(content, {"published", "data", "mlrc", "metrics", "symbols", "all", "all_by_data", "draw", "rows"})
        symbols = {str(name): str(key) for name, key in content.get("symbols", {}).items()}
        rows: list[TableRow] = []
        for name, row in content["rows"].items():
            with mistakes_in(f"row {name!r}"):
                rows += _expand(str(name), row, item.paper, symbols)
        return PaperTable(
            item=item,
            data=tuple(content["data"]),
            rows=tuple(rows),
            published=content.get("published"),
            mlrc=content.get("mlrc", False),
            metrics=tuple(content.get("metrics", ())),
            changes=_sections(content.get("all", {})),
            changes_on={name: _sections(given) for name, given in content.get("all_by_data", {}).items()},
            draw=_draw(content.get("draw", {})),
        )


def _draw(given: Mapping[str, Any]) -> Drawing:
    check_keys(given, {"kind", "x", "y", "series", "metric", "even"})
    kind, x = given.get("kind", "scores"), given.get("x", ())
    if kind not in get_args(Kind):
        raise RecipeError(f"unknown kind of figure {kind!r}: {did_you_mean(str(kind), get_args(Kind))}")
    lists = {"x": (x,) if isinstance(x, str) else tuple(x), "even": tuple(given.get("even", ()))}
    return Drawing(**{**given, **lists})


def data_changes(paper: str, data: str, recipe: str) -> list[Mapping[str, Any]]:
    """What a data set changes in a paper's recipe, which is written for CUB.

    >>> data_changes("mpa", "cars", "mpa/mpa")
    [{'data': {'source': 'cars'}, 'training': {'batch_size': 64}}]
    """
    known = _load(paper_folder(paper) / "data.yml").get(data, {})
    return [known[key] for key in ("all", recipe.rpartition("/")[2]) if key in known]


def _expand(name: str, row: Any, paper: str, symbols: Mapping[str, str]) -> Iterator[TableRow]:
    """A row of the file, or one for every point where it varies something."""
    own = {"title", "series", "published", "recipe", "at", "vary", "points", "only", "by_data", "missing"}
    check_keys(row, {*own, *SECTIONS})
    recipe = row.get("recipe", name)
    published = row.get("published")
    title = str(row.get("title", published or name))
    changes = _sections({key: row[key] for key in SECTIONS if key in row})
    shared: dict[str, Any] = {
        "recipe": recipe if "/" in recipe else f"{paper}/{recipe}",
        "group": name,
        "series": str(row.get("series", title)),
        "only": tuple(row["only"]) if "only" in row else None,
        "changes_on": {data: _sections(given) for data, given in row.get("by_data", {}).items()},
        "missing": row.get("missing"),
    }
    if "vary" not in row and "points" not in row:
        yield TableRow(name, title, published=published, changes=changes, at=dict(row.get("at", {})), **shared)
        return
    for point in _points(row, symbols):
        parts = [f"{symbols[symbol].rpartition('.')[2]}-{text_of(value)}" for symbol, value in point.items()]
        where = ", ".join(f"{symbol}={text_of(value)}" for symbol, value in point.items())
        named = published.get(where) if isinstance(published, Mapping) else published
        for symbol, value in point.items():
            named = None if named is None else str(named).replace(f"{{{symbol}}}", text_of(value))
        yield TableRow(
            "-".join([name, *parts]),
            f"{title}, {where}",
            published=named,
            changes=functools.reduce(layered, (_nested(symbols[key], value) for key, value in point.items()), changes),
            at=point,
            **shared,
        )


def _points(row: Mapping[str, Any], symbols: Mapping[str, str]) -> Iterator[dict[str, Value]]:
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
        return f"[{','.join(text_of(each) for each in value)}]"
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
def _load(file: Path) -> dict[str, Any]:
    """Kept once read: a list of all tables would read a paper's files hundreds of times."""
    return read_yaml(file)


def rows_on(table: PaperTable, data: str) -> list[TableRow]:
    """The rows that a table has for a data set; data that are not the paper's have all of them."""
    return [row for row in table.rows if row.only is None or data in row.only or data not in table.data]


def chosen_rows(rows: Sequence[TableRow], asked: Sequence[str] | None) -> list[TableRow]:
    """The rows asked for by name; the name of a varied row stands for all its points.

    >>> table = tables_of(find_item("mpa/table-7"))[0]
    >>> len(chosen_rows(table.rows, ["mpa"])), len(chosen_rows(table.rows, ["mpa-proxies_per_class-8"]))
    (5, 1)
    """
    if asked is None:
        return list(rows)
    wanted = chosen_names(asked, list({name: None for row in rows for name in (row.group, row.name)}))
    return [row for row in rows if row.name in wanted or row.group in wanted]
