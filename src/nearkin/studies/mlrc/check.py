"""The metric-learning reality check: one model per class fold, scored one by one and side by side, with repeats."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from nearkin.data.cache import OpenedImages
from nearkin.disk import check_writable
from nearkin.errors import BusyError, DataError, MissingExtraError, NearkinError, RecipeError, TrainingError
from nearkin.evaluation.protocol import Protocol
from nearkin.evaluation.stored_split import StoredSplit
from nearkin.recipe import Recipe
from nearkin.report import formats
from nearkin.report.formats import counted
from nearkin.report.table import Table
from nearkin.runs.data import Announce
from nearkin.runs.default_folders import default_folder
from nearkin.runs.folder import RunFolder
from nearkin.runs.outcome import Outcome
from nearkin.runs.scores import ENSEMBLE_FILE, EnsembleScores
from nearkin.studies.mlrc.scoring import score_models
from nearkin.studies.mlrc.tables import mlrc_table
from nearkin.studies.study import PlannedRun, Row, Study, opened, run_all
from nearkin.training.recipes import load_recipe, validate


def mlrc(
    recipe: Recipe | str,
    *,
    repeats: int = 1,
    changes: Iterable[str] = (),
    folder: str | Path | None = None,
    jobs: int = 1,
    console: Console | None = None,
) -> EnsembleScores:
    """Train ``folds × repeats`` models into ``folder/fold-<fold>/seed-<seed>``, score them and write what they come to.

    It can be stopped at any time: the same call goes on, what is finished is kept, and more repeats only add models.
    Every model has a seed of its own, ``training.seed + repeat * folds + fold``: with one seed the models would start
    from the same projection, and side by side say little more than one alone.

    ``separate``: for every repeat the mean score of its models, then the mean over repeats with Student's t interval at
    95 %. ``concatenated``: every combination of one repeat per fold is an ensemble, ``repeats ** folds`` in all; where
    these are more than 256, so many are drawn, seeded by ``protocol.split_seed``. The mean is over combinations; its
    interval counts models, not combinations, which share them
    (``nearkin.evaluation.confidence``). One repeat has no interval.

    Args:
        recipe: what every model is trained with, or its name; its protocol becomes ``mlrc``, with its ``folds``.
        repeats: models per fold.
        changes: ``section.key=value`` for a recipe that is given by name.
        folder: where the models and ``mlrc.json`` go; default: one that the same call finds again.
        jobs: models that are trained at a time, each in a process of its own.
        console: where progress goes.

    Raises:
        RecipeError: where the folder holds models of another recipe.
        DataError: before anything is trained, where the data do not have the classes for it.
        TrainingError: where a model did not finish.
        InterruptedRunError: after Ctrl-C or SIGTERM; calling again goes on.
    """
    check = RealityCheck(load_recipe(recipe, changes) if isinstance(recipe, str) else recipe, repeats, folder)
    check.run(jobs=jobs, console=console)
    check.write()
    return check.result


class RealityCheck(Study):
    """The metric-learning reality check: one model per class fold, with repeats.

    The arguments are those of :func:`mlrc`.
    """

    def __init__(self, recipe: Recipe, repeats: int = 1, folder: str | Path | None = None) -> None:
        if repeats < 1:
            raise RecipeError(f"repeats must be at least 1, got {repeats}")
        self.recipe, self.repeats = recipe, repeats
        self.folder = Path(folder) if folder is not None else default_mlrc_folder(recipe)

    def plan(self) -> list[str]:
        models, folds = self.runs(), self.recipe.protocol.folds
        done = sum(model.folder.is_finished for model in models)
        return [
            f"Plan: {counted(folds, 'fold')} × {counted(self.repeats, 'repeat')} = {counted(len(models), 'model')}, "
            f"{done} of them trained already, into {self.folder}"
        ]

    def runs(self) -> list[PlannedRun]:
        return mlrc_models(self.recipe, self.folder, self.repeats)

    def carry_out(self, jobs: int, overwrite: bool, console: Console, announce: Announce | None) -> list[Outcome]:
        check_writable(self.folder)
        models = self.runs()
        data = checked_data(models, console, announce)
        outcomes = run_all(models, jobs=jobs, overwrite=overwrite, console=console)
        both = zip(models, outcomes, strict=True)
        if problems := [(model.label, outcome) for model, outcome in both if outcome.status != "finished"]:
            label, first = problems[0]
            kinds: tuple[type[NearkinError], ...] = (RecipeError, DataError, MissingExtraError, BusyError)
            kind = next((kind for kind in kinds if kind.exit_code == first.exit_code), TrainingError)
            raise kind(f"{len(problems)} of {len(models)} models did not finish: {label}: {first.reason}")
        score_models(models, data, self.folder, console)
        return outcomes

    @property
    def result(self) -> EnsembleScores:
        """What the folder holds."""
        found = EnsembleScores.read(self.folder)
        if found is None:
            raise DataError(f"{self.folder} has no {ENSEMBLE_FILE} yet: its models are not all trained")
        return found

    def tables(self) -> list[Table]:
        return [mlrc_table(self.result)]

    def record(self) -> dict[str, Any]:
        return {"folder": str(self.folder), **self.result}

    def write(self) -> list[Path]:
        """Write ``mlrc.md`` beside ``mlrc.json``."""
        page = formats.markdown(mlrc_table(self.result, models=True))
        return [*self.write_texts({"mlrc.md": page}), self.folder / ENSEMBLE_FILE]


def default_mlrc_folder(recipe: Recipe) -> Path:
    """``runs/mlrc-<data>-<objective>-<hash>``: the same recipe always has the same folder.

    >>> default_mlrc_folder(Recipe()).name.startswith("mlrc-glyphs-proxy_anchor-")
    True
    """
    folder = default_folder(_fold_recipe(recipe, 0))
    return folder.with_name(f"mlrc-{folder.name}")


def mlrc_models(recipe: Recipe, folder: str | Path, repeats: int, *, title: str = "") -> list[PlannedRun]:
    """Every model with its recipe, seed and folder, repeat by repeat; ``title`` says which check they are of.

    >>> [model.seed for model in mlrc_models(Recipe(), "runs/x", 2)]
    [0, 1, 2, 3, 4, 5, 6, 7]
    """
    folds, whose, models = recipe.protocol.folds, f"{title}, " if title else "", []
    for number in range(repeats * folds):
        repeat, fold = divmod(number, folds)
        seed, name = recipe.training.seed + number, f"{Path(folder).name}/fold-{fold}"
        row = Row(name, f"{whose}fold {fold} of 0–{folds - 1}, repeat {repeat}", _fold_recipe(recipe, fold))
        models.append(PlannedRun(row, seed, RunFolder(Path(folder) / f"fold-{fold}" / f"seed-{seed}")))
    return models


def _fold_recipe(recipe: Recipe, fold: int) -> Recipe:
    return recipe.with_changes({"protocol.name": "mlrc", "protocol.fold": fold})


def checked_data(models: Sequence[PlannedRun], console: Console, announce: Announce | None = None) -> OpenedImages:
    """The images that all models share, once it is certain that they can be trained and scored on them."""
    left = not all(model.folder.is_finished for model in models)
    for model in models:
        model.was_changed(forgive=False)
    if left:
        validate(models[0].recipe)
    data = opened(models[0].recipe, console, announce if left else None)
    _check_images(models, data)
    return data


def _check_images(models: Sequence[PlannedRun], data: OpenedImages) -> None:
    """Refuse, before anything is trained, data that do not suffice or are not those of the models begun before."""
    for model in models:
        protocol = Protocol(model.recipe.protocol, data.table)
        if not model.folder.last_checkpoint.exists() and not model.folder.is_finished:
            protocol.check_trainable()
            continue
        now = StoredSplit.of(data.table, protocol.splits, data.digests)
        if model.folder.split.content_hash != now.content_hash:
            if all(each.folder.is_finished for each in models):
                continue
            _, _, changes = model.folder.split.restore(data)
            said = "; ".join(changes.said(scored=("train", "validation", "test", "query", "gallery")))
            raise DataError(
                f"the images are not those that {model.folder.path} was trained on, and models of other images make "
                f"no ensemble ({said or 'files have other names'}): put them back as they were, or begin anew with -o"
            )
