"""From a line of a published table to a recipe that can be run here, or to the reason why it cannot."""

from __future__ import annotations

import functools
import json
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nearkin.data.benchmarks import benchmarks
from nearkin.data.source import data_root
from nearkin.errors import DataError, mistakes_in
from nearkin.recipe import Recipe
from nearkin.recipe.identity import fingerprint, flat, short_hash
from nearkin.recipe.reading import layered
from nearkin.report.published import DATA_NAMES, Published, look_up
from nearkin.studies.compare.rows import base_recipe
from nearkin.studies.reproduce.papers import PaperTable, TableRow, data_changes, rows_on, text_of
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
    stand_ins: Mapping[str, str] = field(default_factory=dict)
    """Folders or benchmarks that are read in the place of data sets of the paper."""


@dataclass(frozen=True)
class PlannedRow:
    """A line of a table on one data set."""

    row: TableRow
    data: str
    recipe: Recipe | None
    """None where nearkin does not have the method."""
    published: tuple[Published, ...]
    """What the paper reports for it."""
    problem: str | None = None
    """Why it cannot be run here: data, weights or the method itself are missing."""
    mlrc: bool = False

    @property
    def known_recipe(self) -> Recipe:
        assert self.recipe is not None, f"{self.row.name} cannot be run: {self.problem}"
        return self.recipe

    @property
    def title(self) -> str:
        return f"{self.row.title} on {self.data}"

    def folder_in(self, runs: Path) -> str:
        """``<data>/<recipe>-<hash>``: tables that share a row share its runs, and another recipe never meets them."""
        recipe, stem = self.known_recipe, self.row.recipe.rpartition("/")[2]
        decides = [fingerprint(recipe, besides=("training.seed",)), self.mlrc]
        return f"{Path(self.data).stem}/{stem}-{short_hash(decides)}"

    @property
    def command(self) -> str:
        """The command that trains this row alone, or for the reality check all its models."""
        words = command_words(self.row.recipe, self.known_recipe)
        return " ".join(["nearkin", "mlrc" if self.mlrc else "train", *words])

    def as_record(self) -> dict[str, Any]:
        return {
            "name": self.row.name,
            "title": self.row.title,
            "data": self.data,
            "command": None if self.recipe is None else self.command,
            "recipe": None if self.recipe is None else self.recipe.as_mapping(),
            "published": {f"{each.dim}-d {each.protocol} {each.metric}": each.value for each in self.published},
            "problem": self.problem,
        }


def planned_rows(
    table: PaperTable, rows: Sequence[TableRow], data: Iterable[str], settings: Settings, *, say: Say = print
) -> list[PlannedRow]:
    """All or some rows of a table on every data set that they have a line for.

    On data that are not the table's, the rows' losses and methods are trained with a recipe that suits the data, as
    ``nearkin compare`` does, and no published value applies; ``say`` is told what recipe that is.

    >>> from nearkin.studies.reproduce.papers import find_item, tables_of
    >>> table = tables_of(find_item("mpa/table-8"))[0]
    >>> row = planned_rows(table, table.rows[1:2], ["cars"], Settings())[0]
    >>> row.command
    'nearkin train mpa/mpa data.source=cars objective.proxies_per_class=4 training.batch_size=64'
    >>> row.published[0].value
    86.1
    """
    planned = []
    for source in data:
        absent = missing_data(settings.stand_ins.get(source, source), settings.root)
        for row in (row for row in rows_on(table, source) if row in rows):
            published = () if source in settings.stand_ins else tuple(published_values(table, row, source))
            recipe, problem = None, row.missing
            if row.missing is None:
                with mistakes_in(f"row {row.name!r}"):
                    recipe = recipe_of(table, row, source, settings, say=say)
                recipe, problem = _with_weights(recipe, settings)
                problem = absent or problem
            planned.append(PlannedRow(row, source, recipe, published, problem, table.mlrc))
    return planned


def recipe_of(table: PaperTable, row: TableRow, data: str, settings: Settings, *, say: Say = print) -> Recipe:
    """The whole recipe of a row on a data set."""
    overrides = list(settings.overrides)
    if settings.backbone is not None:
        overrides.insert(0, f"encoder.backbone={settings.backbone}")
    if settings.root is not None:
        overrides.append(f"data.root={json.dumps(settings.root)}")
    own = [row.changes, row.changes_on.get(data, {})]
    changes = [table.changes, table.changes_on.get(data, {}), *own]
    if data in table.data:
        changes = [*data_changes(table.item.paper, data, row.recipe), *changes]
        if data in settings.stand_ins:
            changes.append({"data": {"source": settings.stand_ins[data]}})
        return load_recipe(functools.reduce(layered, changes, kept_recipe(row.recipe)), overrides)
    paper = load_recipe(functools.reduce(layered, changes, kept_recipe(row.recipe)))
    suited = base_recipe(data, overrides=[f"data.root={json.dumps(settings.root)}"], say=say)
    own = [{key: each[key] for key in each if key not in ("objective", "method")} for each in own]
    return load_recipe(functools.reduce(layered, own, _on_other_data(paper, suited)), overrides)


def published_values(table: PaperTable, row: TableRow, data: str) -> list[Published]:
    """What the paper reports for a row on a data set."""
    if table.published is None or row.published is None or data not in table.data:
        return []
    return look_up(
        paper=table.item.paper.upper(),
        table=table.published,
        method=row.published,
        dataset=DATA_NAMES.get(data, data),
    )


def missing_data(source: str, root: str | Path | None) -> str | None:
    """Why a data set cannot be read here, as far as a quick look tells; None where it can.

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
    if _needs_no_weights(backbone) or _kept_weights(backbone, root) is not None:
        return None
    return (
        f"no ImageNet weights for {backbone}: give them with --weights FILE, keep them as "
        f"weights/{backbone}.safetensors or .pth below the data root, or start from scratch with --weights none"
    )


def command_words(name: str, recipe: Recipe) -> list[str]:
    """What follows ``nearkin train``: the recipe's name and every key in which it is otherwise.

    >>> command_words("mpa/mpa", load_recipe("mpa/mpa", ["training.epochs=5", "data.source=my photos"]))
    ['mpa/mpa', "'data.source=my photos'", 'training.epochs=5']
    """
    before, now = flat(kept_recipe(name)), flat(recipe.as_mapping())
    renamed = {key.partition(".")[0] for key in ("objective.name", "method.name") if before[key] != now[key]}
    words = [name]
    # The name goes first: another name clears the options that stand there already.
    for key in sorted(now, key=lambda key: not key.endswith(".name")):
        if key.partition(".")[0] in renamed or before.get(key) != now[key]:
            words.append(shlex.quote(f"{key}={text_of(now[key])}"))
    return words


@functools.cache
def kept_recipe(name: str) -> dict[str, Any]:
    """A recipe as it is in its file, read once: a table starts from the same few again and again."""
    return load_recipe(name).as_mapping()


def _on_other_data(paper: Recipe, suited: Recipe) -> dict[str, Any]:
    """Loss, method and batches of the paper's recipe on the data, encoder and budget of one that suits the data."""
    theirs, ours = paper.as_mapping(), suited.as_mapping()
    ours["objective"], ours["method"] = theirs["objective"], theirs["method"]
    ours["encoder"]["normalisation"] = theirs["encoder"]["normalisation"]
    copied = ["sampler", "images_per_class", "evaluate_every_steps"]
    if paper.method.name == "ccp":
        copied.append("proxy_lr_multiplier")
    ours["training"] |= {key: theirs["training"][key] for key in copied}
    ranks = ("recall_at", "precision_at", "map_at", "ndcg_at", "scores", "clustering", "train_share", "label_noise")
    ours["protocol"] |= {key: theirs["protocol"][key] for key in ranks}
    if paper.protocol.name in ("mlrc", "in-distribution"):
        ours["protocol"] |= {key: theirs["protocol"][key] for key in ("name", "folds", "fold", "select_by")}
    return ours


def _with_weights(recipe: Recipe, settings: Settings) -> tuple[Recipe, str | None]:
    """The recipe with the weights it is to start from, or the reason why there are none."""
    backbone = recipe.encoder.backbone
    if any(text.startswith("encoder.weights=") for text in settings.overrides):
        return recipe, None
    weights = None
    if settings.weights != NO_WEIGHTS and not _needs_no_weights(backbone):
        # Weights that a recipe names are those of its own backbone.
        weights = settings.weights or (recipe.encoder.weights if settings.backbone is None else None)
        weights = weights or _kept_weights(backbone, settings.root)
        if weights is None:
            return recipe, missing_weights(backbone, settings.root)
        if weights != "imagenet" and not Path(weights).is_file():
            raise DataError(f"--weights names {weights!r}, which is not a file")
    return recipe.with_changes({"encoder.weights": weights}), None


def _needs_no_weights(backbone: str) -> bool:
    return backbone in FROM_SCRATCH or ":" in backbone


def _kept_weights(backbone: str, root: str | Path | None) -> str | None:
    if backbone in OWN_WEIGHTS:
        return "imagenet"
    where = data_root(root)
    files = [] if where is None else [where / "weights" / f"{backbone}{end}" for end in (".safetensors", ".pth")]
    return next((str(file) for file in files if file.is_file()), None)
