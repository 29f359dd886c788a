"""A trial: a point that Optuna suggests, trained without a look at the test classes, and what came of it."""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from rich.console import Console

from nearkin.data.cache import writer_lock
from nearkin.errors import DataError, InterruptedRunError, MissingExtraError, NearkinError, TrainingError, require
from nearkin.evaluation.protocol import select_by
from nearkin.recipe import Recipe
from nearkin.runs.folder import RunFolder
from nearkin.runs.run import run
from nearkin.runs.scores import Scores
from nearkin.studies.study import PlannedRun, Row
from nearkin.studies.tune.plan import Plan, check_folder, check_plan, plan_file
from nearkin.studies.tune.space import shown, with_values
from nearkin.training.observers import ConsoleObserver, Observers
from nearkin.training.state import Evaluation, TrainingState

Status = Literal["finished", "pruned", "diverged", "failed", "unfinished"]


@dataclass(frozen=True)
class Trial:
    """One point of the space and what came of it."""

    number: int
    status: Status
    """``diverged``: its loss was not finite; ``failed``: it could not be built or ran out of memory."""
    values: dict[str, Any]
    score: float | None = None
    """Mean over the seeds of the best score on the validation classes; of a trial given up the best it had reached."""
    scores: list[float] = field(default_factory=list)
    """For each seed."""
    epochs: list[float] = field(default_factory=list)
    """The chosen epoch, for each seed."""
    curve: list[float] = field(default_factory=list)
    """The score at every evaluation of the first seed."""
    seconds: float = 0.0
    reason: str | None = None
    same_as: int | None = None
    """An earlier trial with the same values, whose result was taken over."""


@dataclass(frozen=True)
class Tuning:
    """A search as far as it has come."""

    plan: Plan
    folder: Path
    trials: list[Trial]
    conditions: dict[str, str]
    """In words: ``data``, ``selection`` (how the epoch is chosen) and ``hardware``."""

    @property
    def select_by(self) -> str:
        return select_by(self.plan.recipe.protocol)

    @property
    def ranking(self) -> list[Trial]:
        """Finished trials from the best down, each point of the space once; of equal ones the earlier first."""
        done = [trial for trial in self.trials if trial.status == "finished" and trial.same_as is None]
        return sorted(done, key=lambda trial: (-(trial.score or 0.0), trial.number))

    def recipe_of(self, trial: Trial) -> Recipe:
        return with_values(self.plan.recipe, trial.values)


def read_tuning(folder: str | Path) -> Tuning:
    """What a folder holds of a search, finished or not."""
    folder = Path(folder)
    plan = Plan.read(folder)
    trials = [_trial(plan, frozen) for frozen in frozen_trials(open_study(plan, folder))]
    records = [RunFolder(file.parent).environment() for file in folder.glob("trials/*/seed-*/environment.json")]
    said = {(each.data.name, each.selection, each.hardware) for each in records}
    data, selection, hardware = (" and ".join(sorted({each[n] for each in said})) for n in range(3))
    return Tuning(plan, folder, trials, {"data": data, "selection": selection, "hardware": hardware})


def open_study(plan: Plan, folder: Path) -> Any:
    """Optuna's study of a search, kept as a journal that several processes may write to."""
    optuna = require("optuna", "tune")
    journal = require("optuna.storages.journal", "tune")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    pruners = {
        # Two evaluations of grace: early scores say little, under a warm-up least of all.
        "median": lambda: optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=3),
        "halving": lambda: optuna.pruners.SuccessiveHalvingPruner(min_resource=2, reduction_factor=2),
        "none": optuna.pruners.NopPruner,
    }
    return optuna.create_study(
        study_name="tune",
        storage=optuna.storages.JournalStorage(journal.JournalFileBackend(str(folder / "optuna.journal"))),
        direction="maximize",
        pruner=pruners[plan.pruner](),
        load_if_exists=True,
    )


def frozen_trials(study: Any) -> list[Any]:
    """Optuna's own records of the trials, in their order."""
    found: list[Any] = study.get_trials(deepcopy=False)
    return found


def unfinished(study: Any) -> list[int]:
    """Numbers of the trials that were begun and have not ended."""
    return [frozen.number for frozen in frozen_trials(study) if frozen.state.name == "RUNNING"]


def ask(plan: Plan, study: Any, *, jobs: int = 1) -> int:
    """Begin a trial whose values the plan's sampler suggests; returns its number."""
    optuna = require("optuna", "tune")
    known = frozen_trials(study)
    # A sampler for every trial: one that begins after an interruption is then drawn as it would have been without.
    seed = int(np.random.SeedSequence([plan.seed, len(known)]).generate_state(1)[0])
    study.sampler = optuna.samplers.RandomSampler(seed=seed)
    if plan.sampler == "tpe":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            study.sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=jobs > 1)
    if plan.sampler == "grid" and not any(frozen.state.name == "WAITING" for frozen in known):
        point = plan.grid()[len(known)]
        study.enqueue_trial({each.key: each.suggestion(point[each.key]) for each in plan.space})
    number: int = study.ask({each.key: each.distribution() for each in plan.space}).number
    return number


def label_of(plan: Plan, study: Any, number: int) -> str:
    """A trial with its values, on one line."""
    suggested = frozen_trials(study)[number].params
    listing = (f"{d.key}={shown(d.value_of(suggested[d.key]))}" for d in plan.space if d.key in suggested)
    return f"trial {number}: {' '.join(listing)}"


def trial_folder(folder: Path, number: int) -> Path:
    return folder / "trials" / f"{number:03d}"


def planned_trials(plan: Plan, folder: str | Path, trials: int | None = None) -> tuple[list[PlannedRun], int]:
    """The runs of a search that have finished or are still to come, and how many trials have ended in any way."""
    require("optuna", "tune")
    check_plan(plan)
    check_folder(plan, Path(folder))
    known = {trial.number: trial for trial in read_tuning(folder).trials} if plan_file(folder).exists() else {}
    runs = []
    for number in range(plan.trials(trials)):
        trial = known.get(number, Trial(number, "unfinished", {}))
        if trial.status in ("finished", "unfinished") and trial.same_as is None:
            runs += _runs_of(plan, Path(folder), number, trial.values, f"trial {number}")
    return runs, sum(trial.status != "unfinished" for trial in known.values())


def train_trial(plan: Plan, folder: Path, number: int, console: Console) -> None:
    """Train a trial that was begun, from where it is to its end, and tell Optuna what came of it.

    Raises:
        InterruptedRunError: when asked to stop; the trial stays unfinished.
        DataError, MissingExtraError: where a file or a package is missing; the trial stays unfinished too.
    """
    # Where a search was killed, a process of its own may still be saving this trial.
    with writer_lock(trial_folder(folder, number)):
        study = open_study(plan, folder)
        if number in unfinished(study):
            _train(plan, folder, study, number, console)


def _train(plan: Plan, folder: Path, study: Any, number: int, console: Console) -> None:
    optuna = require("optuna", "tune")
    frozen = frozen_trials(study)[number]
    if len(frozen.params) < len(plan.space):
        give_up(study, number, "it was killed while its values were drawn")
        return
    if (earlier := _same_values(plan, study, frozen)) is not None:
        _take_over(study, frozen, earlier)
        return
    runs = _runs_of(plan, folder, number, plan.values_of(frozen.params), label_of(plan, study, number))
    pruning = _Pruning(study, frozen)
    scores: list[Scores] = []
    try:
        for planned in runs:
            kept, resume = planned.folder, planned.folder.is_begun
            with ConsoleObserver(console) as bar:
                # The first seed alone is held against other trials, seed for seed; who survives gets the others.
                watched = Observers(bar, pruning) if planned is runs[0] else bar
                done = run(planned.recipe, kept, watched, resume=resume, progress=bar.decoding, score_test=False)
            scores.append(done)
    except (InterruptedRunError, DataError, MissingExtraError):
        raise
    except optuna.TrialPruned:
        _end(study, number, runs, state="PRUNED")
    except TrainingError as error:
        # To the sampler it is as bad as one that was given up, so that it looks elsewhere.
        _end(study, number, runs, state="PRUNED", diverged=True, reason=str(error))
    except (NearkinError, ValueError) as error:
        _end(study, number, runs, state="FAIL", reason=str(error))
    else:
        name = select_by(plan.recipe.protocol)
        best = [float(each.chosen.get(name, math.nan)) for each in scores]
        if all(map(math.isfinite, best)):
            _end(study, number, runs, state="COMPLETE", scores=best, epochs=[each.chosen["epoch"] for each in scores])
        else:
            _end(study, number, runs, state="FAIL", reason=f"no {name} was measured on the validation classes")


def give_up(study: Any, number: int, reason: str) -> None:
    """Record a trial that could not be carried out."""
    _end(study, number, [], state="FAIL", reason=reason)


def how_it_ended(folder: Path, number: int) -> str:
    """How a trial ended, on one line."""
    tuning = read_tuning(folder)
    trial = tuning.trials[number]
    text = f"trial {number}: {trial.status}"
    if trial.score is not None:
        text += f", {tuning.select_by} {100 * trial.score:.1f}"
    if trial.same_as is not None:
        text += f" (trial {trial.same_as} has the same values)"
    if trial.reason:
        text += f": {trial.reason}"
    for best in tuning.ranking[:1]:
        text += f"; best so far trial {best.number}, {100 * (best.score or 0.0):.1f}"
    return text


class _Pruning:
    """Tells Optuna every score, and gives the trial up when its pruner says so."""

    def __init__(self, study: Any, frozen: Any) -> None:
        optuna = require("optuna", "tune")
        self.trial = optuna.trial.Trial(study, frozen._trial_id)
        self.known = set(frozen.intermediate_values)
        self.stop = optuna.TrialPruned

    def on_step(self, state: TrainingState, loss: float, images: int) -> None: ...

    def on_evaluation(self, state: TrainingState, row: Evaluation) -> None:
        score = row.get(state.protocol.select_by, math.nan)
        if state.step == 0 or math.isnan(score):
            return
        number = len(state.history) - 1  # the first was before training
        if number not in self.known:  # a trial that was killed comes to the same evaluation again
            self.trial.report(score, number)
        if state.step < state.total_steps and self.trial.should_prune():
            raise self.stop


def _end(study: Any, number: int, runs: Sequence[PlannedRun], *, state: str, **attributes: Any) -> None:
    """Record a trial. Its checkpoints go first: should this be interrupted, the trial is only trained again."""
    optuna = require("optuna", "tune")
    for planned in runs:
        for file in planned.folder.checkpoints.glob("*.pt"):
            file.unlink()
    rows = [row for planned in runs for row in planned.folder.evaluations()[-1:]]
    attributes["seconds"] = round(sum(row["seconds"] or 0.0 for row in rows), 1)
    _attribute(study, frozen_trials(study)[number], attributes)
    value = statistics.fmean(attributes["scores"]) if state == "COMPLETE" else None
    study.tell(number, value, state=optuna.trial.TrialState[state])


def _runs_of(plan: Plan, folder: Path, number: int, values: Mapping[str, Any], title: str) -> list[PlannedRun]:
    row, first = Row(f"trial-{number}", title, with_values(plan.recipe, values)), plan.recipe.training.seed
    folders = {seed: trial_folder(folder, number) / f"seed-{seed}" for seed in range(first, first + plan.seeds)}
    return [PlannedRun(row, seed, RunFolder(path)) for seed, path in folders.items()]


def _attribute(study: Any, frozen: Any, attributes: Mapping[str, Any]) -> None:
    trial = require("optuna", "tune").trial.Trial(study, frozen._trial_id)
    for key, value in attributes.items():
        trial.set_user_attr(key, value)


def _same_values(plan: Plan, study: Any, frozen: Any) -> Any:
    """An earlier trial that has ended with the same values: training would only repeat it."""
    values, before = plan.values_of(frozen.params), frozen_trials(study)[: frozen.number]
    ended = (t for t in before if t.state.name in ("COMPLETE", "PRUNED") and "same_as" not in t.user_attrs)
    return next((other for other in ended if plan.values_of(other.params) == values), None)


def _take_over(study: Any, frozen: Any, earlier: Any) -> None:
    trial = require("optuna", "tune").trial.Trial(study, frozen._trial_id)
    for step, score in earlier.intermediate_values.items():
        if step not in frozen.intermediate_values:
            trial.report(score, step)
    _attribute(study, frozen, {**earlier.user_attrs, "seconds": 0.0, "same_as": earlier.number})
    study.tell(frozen.number, earlier.value if earlier.state.name == "COMPLETE" else None, state=earlier.state)


def _trial(plan: Plan, frozen: Any) -> Trial:
    attributes = frozen.user_attrs
    statuses: dict[str, Status] = {"COMPLETE": "finished", "PRUNED": "pruned", "FAIL": "failed"}
    status = "diverged" if attributes.get("diverged") else statuses.get(frozen.state.name, "unfinished")
    curve = [score for _, score in sorted(frozen.intermediate_values.items())]
    values = plan.values_of(frozen.params) if len(frozen.params) == len(plan.space) else {}
    score = frozen.value if status == "finished" else max(curve, default=None)
    known = {key: attributes[key] for key in ("scores", "epochs", "seconds", "reason", "same_as") if key in attributes}
    return Trial(frozen.number, status, values, score, curve=curve, **known)
