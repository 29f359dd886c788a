"""The whole of a search: trials one after another in this process, or several at a time in processes of their own."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from nearkin.errors import (
    DataError,
    InterruptedRunError,
    MissingExtraError,
    NearkinError,
    RecipeError,
    TrainingError,
    require,
)
from nearkin.evaluation.protocol import Protocol
from nearkin.recipe import Recipe
from nearkin.report import formats
from nearkin.report.formats import counted
from nearkin.report.table import Table
from nearkin.runs.data import Announce, say_if_images_differ
from nearkin.runs.folder import RunFolder
from nearkin.runs.lock import sole_writer_of
from nearkin.runs.outcome import Outcome
from nearkin.studies.pool import LOG, Job, run_side_by_side
from nearkin.studies.study import PlannedRun, Study, opened
from nearkin.studies.tune.pictures import draw_tuning
from nearkin.studies.tune.plan import Plan, Pruner, Sampler, check_plan, default_tuning_folder, validate_plan
from nearkin.studies.tune.space import read_space
from nearkin.studies.tune.tables import best_recipe, three_seeds, tuning_table
from nearkin.studies.tune.trials import (
    Tuning,
    ask,
    frozen_trials,
    give_up,
    how_it_ended,
    label_of,
    open_study,
    planned_trials,
    read_tuning,
    train_trial,
    trial_folder,
    unfinished,
)
from nearkin.training.recipes import load_recipe


def tune(
    recipe: Recipe | str,
    space: Iterable[str],
    *,
    trials: int | None = None,
    seeds: int = 1,
    sampler: Sampler = "tpe",
    pruner: Pruner | None = None,
    seed: int = 0,
    changes: Iterable[str] = (),
    folder: str | Path | None = None,
    jobs: int = 1,
    console: Console | None = None,
) -> Tuning:
    """Search for better hyper-parameters by the scores of validation classes alone, and write what was found.

    Args:
        recipe: what every trial starts from, or its name; its protocol must hold out validation classes.
        space: what to vary: ``key=low..high``, ``key=low..high:log`` or ``key=a,b,c``; files or names of such.
        trials: how many in all, those from before included; default 20, and for a grid as many as it has points.
        seeds: models per trial, whose mean counts.
        sampler: who suggests the next trial.
        pruner: who gives up trials that do badly; default: ``median``, for a grid ``none``.
        seed: of the sampler. The models have the recipe's own.
        changes: ``section.key=value`` for a recipe that is given by name.
        folder: where everything goes; default: one that the same call finds again.
        jobs: trials at a time. One is trained in this process, several in processes of their own, to fill a GPU.
        console: where progress goes.

    Raises:
        RecipeError: before anything is trained, where the plan cannot be followed or the folder holds another.
        DataError: where the data leave no validation classes; or later, where a trial misses a file.
        InterruptedRunError: after Ctrl-C or SIGTERM; calling again goes on.
    """
    given = load_recipe(recipe, changes) if isinstance(recipe, str) else recipe
    search = Search(Plan.of(given, read_space(space, given), sampler, pruner, seed, seeds), trials, folder)
    search.run(jobs=jobs, console=console)
    search.write()
    return search.tuning


class Search(Study):
    """A search for better hyper-parameters, by the scores of validation classes alone.

    Its plan is carried out until it has ``trials`` trials, those from before included.
    """

    def __init__(self, plan: Plan, trials: int | None = None, folder: str | Path | None = None) -> None:
        require("optuna", "tune")
        if trials is not None and trials < 1:
            raise RecipeError(f"trials must be at least 1, got {trials}")
        self.searched, self.asked = plan, trials
        self.folder = Path(folder) if folder is not None else default_tuning_folder(plan)

    def plan(self) -> list[str]:
        plan = self.searched
        _, ended = planned_trials(plan, self.folder, self.asked)
        pruned = "" if plan.pruner == "none" else "; those that do badly are given up before their end"
        trials, seeds = counted(plan.trials(self.asked), "trial"), counted(plan.seeds, "seed")
        return [f"Plan: {trials} × {seeds}, {ended} of them ended already, into {self.folder}{pruned}"]

    def runs(self) -> list[PlannedRun]:
        return planned_trials(self.searched, self.folder, self.asked)[0]

    def carry_out(self, jobs: int, overwrite: bool, console: Console, announce: Announce | None) -> list[Outcome]:
        plan, folder = self.searched, self.folder
        check_plan(plan)
        _check_data(plan, console, announce)
        wanted = plan.trials(self.asked)
        if folder.exists() and not folder.is_dir():
            raise RecipeError(f"{folder} is a file: give a folder for the search with -o")
        with sole_writer_of(folder):
            validate_plan(plan, folder)
            try:
                (_one_by_one if jobs == 1 else _side_by_side)(plan, folder, wanted, jobs, console)
            except (InterruptedRunError, KeyboardInterrupt) as stop:
                done = sum(trial.status != "unfinished" for trial in read_tuning(folder).trials)
                raise InterruptedRunError(
                    f"interrupted with {done} of {wanted} trials done; what was begun is saved in {folder}. "
                    f"The same command goes on from here"
                ) from stop
        say_if_images_differ(RunFolder(file.parent) for file in sorted(folder.glob("trials/*/seed-*/recipe.yaml")))
        return []

    def failure(self, outcomes: Sequence[Outcome]) -> tuple[str, int] | None:
        """A trial may fail; a search has only when all have."""
        tuning = self.tuning
        if tuning.ranking:
            return None
        reason = next((trial.reason for trial in tuning.trials if trial.reason), "none was carried out to its end")
        return f"no trial has finished: {reason}", TrainingError.exit_code

    @property
    def tuning(self) -> Tuning:
        """What the folder holds."""
        return read_tuning(self.folder)

    def tables(self) -> list[Table]:
        return [tuning_table(self.tuning)]

    def record(self) -> dict[str, Any]:
        tuning = self.tuning
        best = tuning.ranking[0].number if tuning.ranking else None
        found = {"folder": str(self.folder), "select_by": tuning.select_by, "best": best, **tuning.conditions}
        return found | {"trials": [dataclasses.asdict(trial) for trial in tuning.trials]}

    def write(self) -> list[Path]:
        """Write ``trials.csv`` and ``tuning.md``; with a finished trial also ``best.yaml`` and the pictures."""
        tuning = self.tuning
        table = tuning_table(tuning)
        contents = {"tuning.md": formats.markdown(table), "trials.csv": formats.csv_text(table)}
        if tuning.ranking:
            contents["best.yaml"] = best_recipe(tuning)
            contents["tuning.md"] += (
                "\nThe best of them is `best.yaml`. On three seeds, with a score on the test classes:\n\n"
                f"```sh\n{three_seeds(tuning)}\n```\n"
            )
        return self.write_texts(contents) + draw_tuning(tuning)

    def next_steps(self) -> list[str]:
        return [three_seeds(self.tuning)] if self.tuning.ranking else []


def _check_data(plan: Plan, console: Console, announce: Announce | None) -> None:
    data = opened(plan.recipe, console, announce)
    protocol = Protocol(plan.recipe.protocol, data.table)
    protocol.check_trainable()
    if protocol.selects_on != "validation":
        raise DataError(
            f"{data.table.name!r} has too few classes to hold any out for validation, and a search must not choose by "
            f"the test classes: add classes, or change protocol.validation_share "
            f"({plan.recipe.protocol.validation_share:g}) or protocol.test_share ({plan.recipe.protocol.test_share:g})"
        )


def _one_by_one(plan: Plan, folder: Path, wanted: int, jobs: int, console: Console) -> None:
    study = open_study(plan, folder)
    for number in _numbers(plan, study, wanted, jobs):
        console.print(f"[bold]{number + 1} of {wanted}[/bold], {label_of(plan, study, number)}", highlight=False)
        train_trial(plan, folder, number, console)
        console.print(how_it_ended(folder, number), highlight=False, markup=False, soft_wrap=True)


def _side_by_side(plan: Plan, folder: Path, wanted: int, jobs: int, console: Console) -> None:
    """Ask for trials here, train each in a process of its own, and give up those whose process dies."""
    study = open_study(plan, folder)
    missing: list[NearkinError] = []

    def trials() -> Iterator[Job]:
        for number in _numbers(plan, study, wanted, jobs):
            yield Job(
                label_of(plan, study, number),
                ["-m", "nearkin.studies.tune.worker", str(folder), str(number)],
                trial_folder(folder, number) / LOG,
                is_done=lambda number=number: number not in unfinished(study),  # type: ignore[misc]
                ended=partial(ended, number),
            )
            if missing:
                return

    def ended(number: int, code: int, said: str) -> None:
        if number in unfinished(study):
            missing.extend(kind(said) for kind in (DataError, MissingExtraError) if code == kind.exit_code)
            if missing or code == InterruptedRunError.exit_code:
                return  # where something is missing no other trial will fare better
            give_up(study, number, said)
        console.print(how_it_ended(folder, number), highlight=False, markup=False, soft_wrap=True)

    left = len(unfinished(study)) + max(0, wanted - len(frozen_trials(study)))
    run_side_by_side(trials(), at_once=jobs, total=left, console=console)
    if missing:
        raise missing[0]


def _numbers(plan: Plan, study: Any, wanted: int, jobs: int) -> Iterator[int]:
    """Trials that were begun and have not ended, then new ones."""
    yield from unfinished(study)
    while len(frozen_trials(study)) < wanted:
        yield ask(plan, study, jobs=jobs)
