"""From a row of a paper's table to a recipe that can be run here, or to the reason why it cannot."""

from __future__ import annotations

import functools
import json
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nearkin.data.benchmarks import benchmarks
from nearkin.data.source import data_root
from nearkin.errors import DataError, mistakes_in
from nearkin.recipe import Recipe, fingerprint, flat, short_hash
from nearkin.recipe.reading import layered
from nearkin.report.table import NOTHING, Part, Table
from nearkin.studies.papers import (
    Item,
    PaperRow,
    PaperTable,
    items,
    paper_titles,
    shipped_recipe,
    tables_of,
    text_of,
)
from nearkin.studies.rows import base_recipe
from nearkin.studies.study import Row
from nearkin.training.recipes import load_recipe

FROM_SCRATCH = ("small", "resnetv2_20")
OWN_WEIGHTS = ("efficientnet_lite0",)
"""Backbones whose ImageNet weights come with an extra."""
NO_WEIGHTS = "none"

Say = Callable[[str], None]


@dataclass(frozen=True)
class Settings:
    """What the person who runs a table wants otherwise than the paper."""

    backbone: str | None = None
    weights: str | None = None
    """A file, ``imagenet``, or ``none`` to start from scratch; None looks below the data root."""
    root: str | None = None
    overrides: tuple[str, ...] = ()
    stand_in: str | None = None
    """Folder that is read instead of the paper's data, such as drawn digits instead of MNIST."""

    def remarks(self) -> list[str]:
        """What the settings change, in sentences."""
        texts = []
        if self.backbone is not None:
            texts.append(f"Another backbone than the paper's: {self.backbone}.")
        if self.weights == NO_WEIGHTS:
            texts.append("From scratch: no pretrained weights (--weights none).")
        if self.stand_in is not None:
            texts.append(f"Other images: {Path(self.stand_in).name} instead of the paper's data.")
        return texts + [f"Changed in every row: {', '.join(self.overrides)}."] * bool(self.overrides)


def rows_of(
    table: PaperTable, data: Iterable[str], settings: Settings, *, wanted: Sequence[str] | None = None, say: Say = print
) -> list[Row]:
    """The rows of a table on every data set that they have a line for, as a study runs them.

    A row that cannot be run here has the reason as its ``problem``. On data that are not the table's, the rows' losses
    and methods are trained with a recipe that suits the data, as ``nearkin compare`` does, and no published value
    applies; ``say`` is called with the name of that recipe.

    >>> from nearkin.studies.papers import find_item
    >>> (table,) = tables_of(find_item("mpa/table-8"))
    >>> row = rows_of(table, ["cars"], Settings())[1]
    >>> row.command
    'nearkin train mpa/mpa data.source=cars objective.proxies_per_class=4 training.batch_size=64'
    >>> row.published[0].value
    86.1
    """
    rows = []
    for source in data:
        absent = missing_data(settings.stand_in or source, settings.root)
        for row in (row for row in table.rows_on(source) if row in table.chosen_rows(wanted)):
            published = () if settings.stand_in else tuple(table.published_values(row, source))
            recipe, problem, command, folder = Recipe(), row.missing, None, f"{source}/{row.name}"
            if row.missing is None:
                with mistakes_in(f"row {row.name!r}"):
                    recipe = recipe_of(table, row, source, settings, say=say)
                recipe, problem = _with_weights(recipe, settings)
                problem = absent or problem
                words = command_words(row.recipe, recipe)
                command = " ".join(["nearkin", "mlrc" if table.mlrc else "train", *words])
                # Tables that share a row share its runs, as the folder is named after the recipe.
                decides = short_hash([fingerprint(recipe, besides=("training.seed",)), table.mlrc])
                folder = f"{Path(source).stem}/{row.recipe.rpartition('/')[2]}-{decides}"
            rows.append(
                Row(
                    row.name,
                    row.title,
                    recipe,
                    mlrc=table.mlrc,
                    data=source,
                    published=published,
                    problem=problem,
                    command=command,
                    at=row.at,
                    series=row.series,
                    folder=folder,
                )
            )
    return rows


def recipe_of(table: PaperTable, row: PaperRow, data: str, settings: Settings, *, say: Say = print) -> Recipe:
    """The whole recipe of a row on a data set."""
    overrides = list(settings.overrides)
    if settings.backbone is not None:
        overrides.insert(0, f"encoder.backbone={settings.backbone}")
    if settings.root is not None:
        overrides.append(f"data.root={json.dumps(settings.root)}")
    paper = table.recipe_of(row, data)
    if data in table.data:
        stand_in = {"data": {"source": settings.stand_in}} if settings.stand_in else {}
        return load_recipe(layered(paper, stand_in), overrides)
    suited = base_recipe(data, overrides=[f"data.root={json.dumps(settings.root)}"], say=say)
    kept = [
        {section: values for section, values in changes.items() if section not in ("objective", "method")}
        for changes in table.row_changes(row, data)
    ]
    return load_recipe(functools.reduce(layered, kept, _on_other_data(load_recipe(paper), suited)), overrides)


def _on_other_data(paper: Recipe, suited: Recipe) -> dict[str, Any]:
    """Loss, method and batches of the paper's recipe on the data, encoder and budget of one that suits the data."""
    theirs, ours = paper.as_mapping(), suited.as_mapping()
    ours["objective"], ours["method"] = theirs["objective"], theirs["method"]
    ours["encoder"]["normalisation"] = theirs["encoder"]["normalisation"]
    copied = ["sampler", "images_per_class", "evaluate_every_steps"]
    if paper.method.name == "ccp":
        copied.append("proxy_lr_multiplier")
    ours["training"] |= {key: theirs["training"][key] for key in copied}
    scored = ["recall_at", "precision_at", "map_at", "ndcg_at", "scores", "clustering", "train_share", "label_noise"]
    if paper.protocol.name in ("mlrc", "in-distribution"):
        scored += ["name", "folds", "fold", "select_by"]
    ours["protocol"] |= {key: theirs["protocol"][key] for key in scored}
    return ours


def missing_data(source: str, root: str | Path | None) -> str | None:
    """Why a data set cannot be read here, as far as a quick look shows; None where it can.

    >>> missing_data("glyphs", None) is None
    True
    """
    where = data_root(root)
    if source not in benchmarks():
        return None if Path(source).expanduser().exists() else f"there is no {source}"
    benchmark = benchmarks()[source]
    folder = benchmark.find(where) if where else None
    if benchmark.embedded or (folder and not benchmark.problem(folder)):
        return None
    if folder:
        return f"{benchmark.title} in {folder} is not whole: {benchmark.problem(folder)}"
    if where is None:
        return f"{benchmark.title} is not here: name the folder of your data sets with --data-root"
    return f"{benchmark.title} was not found below {where}"


def missing_weights(backbone: str, root: str | Path | None) -> str | None:
    """Why a backbone would have to start from scratch; None where it has weights or needs none."""
    if _needs_no_weights(backbone) or _stored_weights(backbone, root) is not None:
        return None
    return (
        f"no ImageNet weights for {backbone}: give them with --weights FILE, keep them as "
        f"weights/{backbone}.safetensors or .pth below the data root, or start from scratch with --weights none"
    )


def _with_weights(recipe: Recipe, settings: Settings) -> tuple[Recipe, str | None]:
    """The recipe with the weights it is to start from, or the reason why there are none."""
    backbone = recipe.encoder.backbone
    if any(text.startswith("encoder.weights=") for text in settings.overrides):
        return recipe, None
    weights = None
    if settings.weights != NO_WEIGHTS and not _needs_no_weights(backbone):
        # Weights that a recipe names are those of its own backbone.
        weights = settings.weights or (recipe.encoder.weights if settings.backbone is None else None)
        weights = weights or _stored_weights(backbone, settings.root)
        if weights is None:
            return recipe, missing_weights(backbone, settings.root)
        if weights != "imagenet" and not Path(weights).is_file():
            raise DataError(f"--weights names {weights!r}, which is not a file")
    return recipe.with_changes({"encoder.weights": weights}), None


def _needs_no_weights(backbone: str) -> bool:
    return backbone in FROM_SCRATCH or ":" in backbone


def _stored_weights(backbone: str, root: str | Path | None) -> str | None:
    if backbone in OWN_WEIGHTS:
        return "imagenet"
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
    # The name goes first: another name clears the options that stand there already.
    for key in sorted(now, key=lambda key: not key.endswith(".name")):
        if key.partition(".")[0] in renamed or before.get(key) != now[key]:
            words.append(shlex.quote(f"{key}={text_of(now[key])}"))
    return words


def list_tables(paper: str | None, settings: Settings) -> Table:
    """Every table and figure of one paper or of all, with its data sets and rows, and what is missing to run it.

    >>> table = list_tables("mpa", Settings(root="/no/such/folder"))
    >>> [record["missing"] for record in table.records if record["table"] == "mpa/table-4"]
    ['data: cub; weights: bn_inception']
    """
    records = [_availability(item, settings) for item in items(paper)]
    parts = []
    for key, title in paper_titles().items():
        cells = [
            [record["table"], record["title"], ", ".join(record["data"]), str(record["rows"] or ""), record["missing"]]
            for record in records
            if record["table"].startswith(f"{key}/")
        ]
        columns = ("table", "what it shows", "data", "rows", "missing here")
        parts += [Part.of(columns, cells, title=f"{key.upper()}: {title}", texts=5)] if cells else []
    hint = "Run one: nearkin reproduce TABLE. See its rows: nearkin reproduce TABLE --list"
    return Table("", tuple(parts), (hint,), records=tuple(records))


def _availability(item: Item, settings: Settings) -> dict[str, Any]:
    tables = tables_of(item)
    data = [name for table in tables for name in table.data]
    lines = [(table, row, name) for table in tables for name in table.data for row in table.rows_on(name)]
    recipes = [table.recipe_of(row, name) for table, row, name in lines if row.missing is None]
    backbones = {settings.backbone or recipe["encoder"]["backbone"] for recipe in recipes}
    absent = [name for name in data if missing_data(name, settings.root) is not None]
    without = [name for name in sorted(backbones) if not settings.weights and missing_weights(name, settings.root)]
    unknown = sum(row.missing is not None for _, row, _ in lines)
    parts = [f"data: {', '.join(absent)}"] * bool(absent) + [f"weights: {', '.join(without)}"] * bool(without)
    parts += [f"{unknown} rows not in nearkin"] * bool(unknown)
    return {
        "table": item.id,
        "title": item.title,
        "data": data,
        "rows": len(lines),
        "missing_data": absent,
        "missing_weights": without,
        "missing": item.instead or "; ".join(parts) or NOTHING,
        "instead": item.instead,
        "same_as": [f"{item.paper}/{key}" for key in item.same_as],
    }
