"""The papers' tables and figures: rows with published values, and recipes to run them or the reason why none can.

In ``recipes/papers/<paper>/`` the file ``paper.yml`` lists the tables and figures, ``<table>.table.yml`` holds the rows
of one, a recipe is a method with the paper's hyper-parameters for CUB, and ``data.yml`` what other data sets change.
"""

from __future__ import annotations

import functools
import itertools
import json
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nearkin.data.benchmarks import benchmarks
from nearkin.data.source import data_root
from nearkin.errors import DataError, RecipeError, did_you_mean, mistakes_in
from nearkin.recipe import Recipe, fingerprint, flat, recipes_folder, short_hash
from nearkin.recipe.reading import PAPERS, check_keys, layered, read_yaml
from nearkin.report.published import DATA_NAMES, Published, look_up
from nearkin.report.table import NOTHING, Part, Table
from nearkin.studies.rows import base_recipe, chosen_names, shared_recipe
from nearkin.studies.study import Row
from nearkin.training.recipe_check import load_recipe

FROM_SCRATCH = ("small", "resnetv2_20")
NO_WEIGHTS = "none"

Say = Callable[[str], None]
SECTIONS = ("data", "encoder", "objective", "method", "training", "protocol")
ROW_KEYS = ("title", "series", "published", "recipe", "at", "vary", "only", "by_data", "missing")
TABLE_KEYS = ("published", "data", "mlrc", "metrics", "symbols", "all", "all_by_data", "draw", "plots", "rows")

Changes = Mapping[str, Any]


@dataclass(frozen=True)
class Item:
    """A table or a figure of a paper."""

    paper: str
    """The paper's key, such as ``ccp``; also its folder."""
    key: str
    title: str
    instead: str | None = None
    """What to do instead, where there are no rows to run."""
    same_as: str | None = None
    """Key of the table whose rows these are."""

    @property
    def id(self) -> str:
        return f"{self.paper}/{self.key}"


@dataclass(frozen=True)
class PaperRow:
    """A row of a table before a data set is chosen."""

    name: str
    title: str
    recipe: str
    """The name of the recipe that it changes, such as ``ccp/c2_ccp``."""
    group: str
    """The row of the file that it belongs to; its own name where nothing is varied."""
    series: str
    published: str | None = None
    """The method's name in the published table."""
    changes: Changes = field(default_factory=dict)
    changes_on: Mapping[str, Changes] = field(default_factory=dict)
    """Further changes for single data sets."""
    only: tuple[str, ...] | None = None
    """The data sets that it has a line for; None for all of the table."""
    at: Mapping[str, Any] = field(default_factory=dict)
    missing: str | None = None
    """Why nearkin cannot run it at all."""

    def changes_for(self, data: str) -> list[Changes]:
        return [self.changes, self.changes_on.get(data, {})]


@dataclass(frozen=True)
class PaperTable:
    """A table or figure that can be run."""

    item: Item
    data: tuple[str, ...]
    rows: tuple[PaperRow, ...]
    published: str | None = None
    """Its name in the list of published values."""
    mlrc: bool = False
    metrics: tuple[str, ...] = ()
    """Scores to show; empty for those that are published."""
    changes: Changes = field(default_factory=dict)
    changes_on: Mapping[str, Changes] = field(default_factory=dict)
    draw: Mapping[str, Any] = field(default_factory=dict)
    """The ``metric`` of its figure, symbols on horizontal axes (``x``), a symbol with a line for each value
    (``series``), and symbols whose values are drawn at equal distances (``even``)."""
    plots: str | None = None
    """Figures of ``nearkin plot`` that show what the paper's figure does."""

    @property
    def heading(self) -> str:
        return f"{self.item.paper.upper()}, {self.item.key.replace('-', ' ', 1)}: {self.item.title}"

    def rows_on(self, data: str) -> list[PaperRow]:
        """The rows for a data set; data that are not the paper's have all of them."""
        return [row for row in self.rows if row.only is None or data in row.only or data not in self.data]

    def chosen_rows(self, wanted: Sequence[str] | None) -> list[PaperRow]:
        """The rows with these names; the name of a varied row stands for all its points."""
        if wanted is None:
            return list(self.rows)
        names = chosen_names(wanted, [name for row in self.rows for name in (row.group, row.name)])
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
        changes = [known.get("all", {}), known.get(row.recipe.rpartition("/")[2], {})]
        changes += [self.changes, self.changes_on.get(data, {}), *row.changes_for(data)]
        return functools.reduce(layered, changes, shipped_recipe(row.recipe))


def papers() -> list[str]:
    """Keys of the papers."""
    return sorted(file.parent.name for file in recipes_folder().glob(f"{PAPERS}/*/paper.yml"))


def paper_folder(paper: str) -> Path:
    return recipes_folder() / PAPERS / paper


def items(paper: str | None = None) -> list[Item]:
    """Every table and figure of one paper, or of all."""
    if paper is not None and paper not in papers():
        raise RecipeError(f"no paper {paper!r}: {did_you_mean(paper, papers())}")
    files = {name: _load(paper_folder(name) / "paper.yml") for name in (papers() if paper is None else [paper])}
    return [Item(name, key, **entry) for name, file in files.items() for key, entry in file["items"].items()]


def find_item(given: str) -> Item:
    """A table or figure by its id, such as ``mpa/table-4``."""
    known = {item.id: item for item in items()}
    if given not in known:
        raise RecipeError(f"no table or figure {given!r}: {did_you_mean(given, known)}")
    return known[given]


def table_of(item: Item) -> PaperTable:
    """The table to run for an item: its own, or that whose rows it repeats."""
    if item.same_as is not None:
        return table_of(find_item(f"{item.paper}/{item.same_as}"))
    if item.instead is not None:
        raise RecipeError(f"{item.id} has no rows to run: {item.instead}")
    return read_table(item, paper_folder(item.paper) / f"{item.key}.table.yml")


def read_table(item: Item, file: Path) -> PaperTable:
    """The rows and settings that a file gives for a table."""
    content = _load(file)
    with mistakes_in(file.name):
        check_keys(content, TABLE_KEYS)
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
    check_keys(row, {*ROW_KEYS, *SECTIONS})
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
    for point in _points(row["vary"], symbols) if "vary" in row else [{}]:
        names, titles, changed = [name], [title], changes
        for symbol, value in point.items():
            section, _, key = symbols[symbol].partition(".")
            names.append(f"{key}-{text_of(value)}")
            titles.append(f"{symbol}={text_of(value)}")
            changed = layered(changed, {section: {key: value}})
        texts = {symbol: text_of(value) for symbol, value in point.items()}
        by_point = isinstance(published, Mapping)
        method = published.get(", ".join(titles[1:])) if by_point else published and published.format(**texts)
        known = {**shared, "published": method, "changes": changed, "at": point or dict(row.get("at", {}))}
        yield PaperRow("-".join(names), ", ".join(titles), **known)


def _points(vary: Any, symbols: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Every combination of the values that ``vary`` gives, or that each of its parts gives."""
    for given in vary if isinstance(vary, list) else [vary]:
        for symbol in given:
            if symbol not in symbols:
                raise RecipeError(f"varies {symbol!r}, which the file's 'symbols' do not name")
        axes = (values if isinstance(values, list) else [values] for values in given.values())
        for values in itertools.product(*axes):
            yield dict(zip(given, values, strict=True))


def text_of(value: Any) -> str:
    """A value as it is written on a command line and in a title.

    >>> text_of(0.0002), text_of(8), text_of(None), text_of([1, 10]), text_of(False)
    ('0.0002', '8', 'null', '[1,10]', 'false')
    """
    if isinstance(value, float):
        return f"{value:.10g}"
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _sections(given: Any) -> dict[str, Any]:
    check_keys(given, SECTIONS, "sections of a recipe")
    return dict(given)


@functools.cache
def shipped_recipe(name: str) -> dict[str, Any]:
    """A recipe as a mapping, read once: a table starts from the same few again and again."""
    return load_recipe(name).as_mapping()


_load = functools.cache(read_yaml)
"""Read once: a list of all tables needs a paper's files hundreds of times."""


@dataclass(frozen=True)
class Settings:
    """What a user changes of the paper's recipes."""

    backbone: str | None = None
    weights: str | None = None
    """A file, ``imagenet``, or ``none`` to start from scratch; None looks below the data root."""
    root: str | None = None
    overrides: tuple[str, ...] = ()

    def remarks(self) -> list[str]:
        """What the settings change, in sentences."""
        texts = {
            f"Another backbone than the paper's: {self.backbone}.": self.backbone is not None,
            "From scratch: no pretrained weights (--weights none).": self.weights == NO_WEIGHTS,
            f"Changed in every row: {', '.join(self.overrides)}.": bool(self.overrides),
        }
        return [text for text, applies in texts.items() if applies]


def rows_of(
    table: PaperTable, data: Iterable[str], settings: Settings, *, wanted: Sequence[str] | None = None, say: Say = print
) -> list[Row]:
    """The rows of a table on every data set that they have a line for, as a study runs them.

    A row that cannot be run here has the reason as its ``problem``. On data that are not the table's, the rows' losses
    and methods are trained with a recipe that suits the data, and no published value applies; ``say`` is called with
    the name of that recipe.

    >>> table = table_of(find_item("mpa/table-8"))
    >>> row = rows_of(table, ["cars"], Settings())[1]
    >>> row.command
    'nearkin train mpa/mpa data.source=cars objective.proxies_per_class=4 training.batch_size=64'
    >>> row.published[0].value
    86.1
    """
    rows, names = [], [row.name for row in table.chosen_rows(wanted)]
    for source in data:
        absent = missing_data(source, settings.root)
        for row in (row for row in table.rows_on(source) if row.name in names):
            recipe, problem, command, folder = Recipe(), None, None, f"{source}/{row.name}"
            if row.missing is None:
                with mistakes_in(f"row {row.name!r}"):
                    recipe = recipe_of(table, row, source, settings, say=say)
                recipe, problem = _with_weights(recipe, settings)
                words = command_words(row.recipe, recipe)
                command = " ".join(["nearkin", "mlrc" if table.mlrc else "train", *words])
                # Tables that share a row share its runs, as the folder is named after the recipe.
                decides = short_hash([fingerprint(recipe, besides=("training.seed",)), table.mlrc])
                folder = f"{Path(source).stem}/{row.recipe.rpartition('/')[2]}-{decides}"
            known: dict[str, Any] = {"mlrc": table.mlrc, "data": source, "at": row.at, "series": row.series}
            known |= {"published": tuple(table.published_values(row, source)), "command": command, "folder": folder}
            problem = row.missing or absent or problem
            rows.append(Row(row.name, row.title, recipe, problem=problem, **known))
    return rows


def recipe_of(table: PaperTable, row: PaperRow, data: str, settings: Settings, *, say: Say = print) -> Recipe:
    """The whole recipe of a row on a data set."""
    root = f"data.root={json.dumps(settings.root)}"
    overrides = [f"encoder.backbone={settings.backbone}"] * (settings.backbone is not None)
    overrides += [*settings.overrides, *[root] * (settings.root is not None)]
    paper = table.recipe_of(row, data)
    if data in table.data:
        return load_recipe(paper, overrides)
    suited = _on_other_data(load_recipe(paper), base_recipe(shared_recipe(data, say=say), data, [root]))
    for changes in row.changes_for(data):
        kept = {section: values for section, values in changes.items() if section not in ("objective", "method")}
        suited = layered(suited, kept)
    return load_recipe(suited, overrides)


def _on_other_data(paper: Recipe, suited: Recipe) -> dict[str, Any]:
    """Loss, method and batches of the paper's recipe on the data, encoder and budget of one that suits the data."""
    theirs, ours = paper.as_mapping(), suited.as_mapping()
    ours["objective"], ours["method"] = theirs["objective"], theirs["method"]
    ours["encoder"]["normalisation"] = theirs["encoder"]["normalisation"]
    copied = ["sampler", "images_per_class", "evaluate_every_steps"]
    copied += ["proxy_lr_multiplier"] * (paper.method.name == "ccp")
    ours["training"] |= {key: theirs["training"][key] for key in copied}
    scored = ["recall_at", "precision_at", "map_at", "ndcg_at", "scores", "clustering", "train_share", "label_noise"]
    if paper.protocol.name in ("mlrc", "in-distribution"):
        scored += ["name", "folds", "fold", "select_by"]
    ours["protocol"] |= {key: theirs["protocol"][key] for key in scored}
    return ours


def missing_data(source: str, root: str | Path | None) -> str | None:
    """Why a data set cannot be read here, as far as a quick look shows; None where it can."""
    if source not in benchmarks():
        return None if Path(source).expanduser().exists() else f"there is no {source}"
    benchmark, where = benchmarks()[source], data_root(root)
    if benchmark.embedded:
        return None
    if where is None:
        return f"{benchmark.title} is not here: name the folder of data sets (--data-root) or see 'nearkin datasets'"
    if (folder := benchmark.find(where)) is None:
        return f"{benchmark.title} was not found below {where}: see 'nearkin datasets'"
    problem = benchmark.problem(folder)
    return f"{benchmark.title} in {folder} is not whole: {problem}" if problem else None


def missing_weights(backbone: str, root: str | Path | None) -> str | None:
    """Why a backbone would have to start from scratch; None where it has weights or needs none."""
    if not _starts_from_weights(backbone) or _stored_weights(backbone, root) is not None:
        return None
    return (
        f"no ImageNet weights for {backbone}: give them with --weights FILE, keep them as "
        f"weights/{backbone}.safetensors or .pth below the data root, or start from scratch with --weights none"
    )


def _with_weights(recipe: Recipe, settings: Settings) -> tuple[Recipe, str | None]:
    """The recipe with the weights it is to start from, or the reason why there are none."""
    backbone, weights, problem = recipe.encoder.backbone, None, None
    if any(text.startswith("encoder.weights=") for text in settings.overrides):
        return recipe, None
    if settings.weights != NO_WEIGHTS and _starts_from_weights(backbone):
        # Weights that a recipe names are those of its own backbone.
        weights = settings.weights or (recipe.encoder.weights if settings.backbone is None else None)
        weights = weights or _stored_weights(backbone, settings.root)
        problem = None if weights else missing_weights(backbone, settings.root)
        if weights and weights != "imagenet" and not Path(weights).is_file():
            raise DataError(f"--weights names {weights!r}, which is not a file")
    return recipe.with_changes({"encoder.weights": weights}), problem


def _starts_from_weights(backbone: str) -> bool:
    return backbone not in FROM_SCRATCH and ":" not in backbone


def _stored_weights(backbone: str, root: str | Path | None) -> str | None:
    if backbone == "efficientnet_lite0":
        return "imagenet"  # these come with an extra
    where = data_root(root)
    files = [] if where is None else [where / "weights" / f"{backbone}{end}" for end in (".safetensors", ".pth")]
    return next((str(file) for file in files if file.is_file()), None)


def command_words(name: str, recipe: Recipe) -> list[str]:
    """What follows ``nearkin train``: the recipe's name and every key in which it differs.

    >>> command_words("mpa/mpa", load_recipe("mpa/mpa", ["training.epochs=5", "data.source=my photos"]))
    ['mpa/mpa', "'data.source=my photos'", 'training.epochs=5']
    """
    before, now = flat(shipped_recipe(name)), flat(recipe.as_mapping())
    renamed = {key.partition(".")[0] for key in ("objective.name", "method.name") if before[key] != now[key]}
    words = [name]
    # Names go first, since another name clears the options of the one before.
    for key in sorted(now, key=lambda key: not key.endswith(".name")):
        if key.partition(".")[0] in renamed or before.get(key) != now[key]:
            words.append(shlex.quote(f"{key}={text_of(now[key])}"))
    return words


def list_tables(paper: str | None, settings: Settings) -> Table:
    """Every table and figure of one paper or of all, with its data sets and rows, and what is missing to run it."""
    records: list[dict[str, Any]] = []
    cells: dict[str, list[list[str]]] = {}
    for item in items(paper):
        table = table_of(item) if item.instead is None else PaperTable(item, (), ())
        lines = [(row, name) for name in table.data for row in table.rows_on(name)]
        recipes = [table.recipe_of(row, name) for row, name in lines if row.missing is None]
        backbones = {settings.backbone or recipe["encoder"]["backbone"] for recipe in recipes}
        absent = [name for name in table.data if missing_data(name, settings.root) is not None]
        without = [name for name in sorted(backbones) if not settings.weights and missing_weights(name, settings.root)]
        unknown = len(lines) - len(recipes)
        parts = [f"data: {', '.join(absent)}"] * bool(absent) + [f"weights: {', '.join(without)}"] * bool(without)
        parts += [f"{unknown} rows not in nearkin"] * bool(unknown)
        missing = item.instead or "; ".join(parts) or NOTHING
        record: dict[str, Any] = {"table": item.id, "title": item.title, "data": list(table.data), "rows": len(lines)}
        record |= {"instead": item.instead, "same_as": item.same_as and f"{item.paper}/{item.same_as}"}
        records.append(record | {"missing_data": absent, "missing_weights": without, "missing": missing})
        texts = [item.id, item.title, ", ".join(table.data), str(len(lines) or ""), missing]
        cells.setdefault(item.paper, []).append(texts)
    columns = ("table", "what it shows", "data", "rows", "missing here")
    titles = {name: _load(paper_folder(name) / "paper.yml")["title"] for name in cells}
    shown = [Part.of(columns, cells[name], title=f"{name.upper()}: {titles[name]}", texts=5) for name in cells]
    hint = "Run one: nearkin reproduce TABLE. See its rows: nearkin reproduce TABLE --list"
    return Table("", tuple(shown), (hint,), records=tuple(records))
