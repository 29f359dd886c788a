"""Search over hyper-parameters with Optuna, by validation classes alone: ``nearkin tune``.

Optuna's journal in the folder is the record of the search: plan, trials and their scores. Each trial is trained as
runs that resume, without a look at the test classes.
"""

from __future__ import annotations

import math
import shlex
import statistics
import sys
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from rich.console import Console

from nearkin.disk import sole_writer_of
from nearkin.errors import (
    BusyError,
    DataError,
    InterruptedRunError,
    MissingExtraError,
    NearkinError,
    RecipeError,
    TrainingError,
    require,
)
from nearkin.evaluation.protocol import Protocol, select_by
from nearkin.evaluation.statistics import Statistic
from nearkin.recipe import Recipe, deciding, differences, short_hash
from nearkin.report.figure_style import save_figure
from nearkin.report.score_tables import score_text
from nearkin.report.table import Part, Table, counted, csv_text, markdown
from nearkin.runs.data import Announce, notice_changed_images
from nearkin.runs.folder import RUNS, Outcome, RunFolder, default_folder
from nearkin.runs.run import run
from nearkin.studies.search_space import check_space, grid, read_space, recipe_at, value_text
from nearkin.studies.study import PlannedRun, Row, opened, planned_runs, write_texts
from nearkin.studies.tables import budget_text
from nearkin.studies.worker_pool import LOG, Job, run_in_parallel
from nearkin.training.observers import ConsoleObserver
from nearkin.training.recipe_check import load_recipe, validate
from nearkin.training.state import Evaluation, Observer, TrainingState

Sampler = Literal["tpe", "random", "grid"]
Pruner = Literal["median", "none"]

JOURNAL = "optuna.journal"
TRIALS = 20
SHOWN = 10
"""Trials in a table; ``trials.csv`` has them all."""
STATUS = {"COMPLETE": "finished", "PRUNED": "pruned", "FAIL": "failed", "RUNNING": "unfinished"}
"""Our words for Optuna's states of a trial."""


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
    train: bool = True,
) -> Search:
    """Search for better hyper-parameters by the scores of validation classes alone, and write the result.

    Args:
        recipe: what every trial starts from, or its name; its protocol must hold out validation classes.
        space: what to vary: ``key=low..high``, ``key=low..high:log`` or ``key=a,b,c``; files or names of such.
        trials: how many in all, finished ones included; default 20, for a grid all its points.
        seeds: models per trial, whose mean counts.
        sampler: what suggests the next trial.
        pruner: what stops trials that do badly; default: ``median``, for a grid ``none``.
        seed: of the sampler. The models have the recipe's own.
        changes: ``section.key=value`` for a recipe that is given by name.
        folder: where everything goes; default: one that the same call finds again.
        jobs: trials at a time. One is trained in this process, several in processes of their own, to fill a GPU.
        console: where progress goes.
        train: False only plans the search, which is returned all the same.
    """
    require("optuna", "tune").logging.set_verbosity(30)
    recipe = load_recipe(recipe, changes) if isinstance(recipe, str) else recipe
    pruner = pruner or ("none" if sampler == "grid" else "median")
    protocol = recipe.protocol.name
    if protocol not in ("validation", "mlrc"):
        raise RecipeError(
            f"a search scores validation classes only, and protocol.name={protocol} holds out none: set "
            f"protocol.name=validation, or protocol.name=mlrc to hold out the class fold protocol.fold"
        )
    for key, value, allowed in (("sampler", sampler, get_args(Sampler)), ("pruner", pruner, get_args(Pruner))):
        if value not in allowed:
            raise RecipeError(f"{key} must be one of {', '.join(allowed)}, got {value!r}")
    if seeds < 1 or seed < 0 or (trials is not None and trials < 1):
        raise RecipeError(f"seeds and trials must be at least 1, seed at least 0; got {seeds}, {trials}, {seed}")
    settings = {"space": list(map(str, space)), "sampler": sampler, "pruner": pruner, "seed": seed, "seeds": seeds}
    search = Search(recipe, settings, trials, folder)
    if train:
        search.run(jobs=jobs, console=console)
        search.write()
    return search


class Search:
    """A search and its folder; :func:`tune` makes it."""

    def __init__(self, recipe: Recipe, settings: dict[str, Any], trials: int | None, folder: str | Path | None) -> None:
        self.recipe, self.settings = recipe, settings
        self.space = read_space(settings["space"], recipe)
        self.sampler, self.pruner, self.seed = settings["sampler"], settings["pruner"], settings["seed"]
        self.trials = trials or TRIALS
        if self.sampler == "grid":
            points = len(grid(self.space))
            self.trials = min(trials or points, points)
        first = recipe.training.seed
        self.seeds = range(first, first + settings["seeds"])
        self.select_by = select_by(recipe.protocol)
        stem = default_folder(recipe).name.rpartition("-")[0]
        self.folder = Path(folder or RUNS / f"tune-{stem}-{short_hash(self._deciding())}")

    @staticmethod
    def read(folder: str | Path) -> Search:
        """The search that a folder holds."""
        if not (Path(folder) / JOURNAL).is_file():
            raise DataError(f"{folder} holds no search, as it has no {JOURNAL}: start one with nearkin tune RECIPE")
        plan = _open(Path(folder)).user_attrs["plan"]
        return tune(load_recipe(plan["recipe"]), **plan["settings"], folder=folder, train=False)

    @property
    def history(self) -> list[Any]:
        """Optuna's records of the trials that were begun."""
        if not (self.folder / JOURNAL).is_file():
            return []
        return [trial for trial in _open(self.folder).get_trials(deepcopy=False) if trial.state.name != "WAITING"]

    @property
    def ranking(self) -> list[Any]:
        """Finished trials from the best down."""
        done = [trial for trial in self.history if trial.state.name == "COMPLETE"]
        return sorted(done, key=lambda trial: (-trial.value, trial.number))

    def plan(self) -> list[str]:
        self._check_folder()
        ended = sum(trial.state.is_finished() for trial in self.history)
        trials, seeds = counted(self.trials, "trial"), counted(len(self.seeds), "seed")
        return [f"Plan: {trials} × {seeds}, {ended} of them ended already, into {self.folder}"]

    def run(self, *, jobs: int = 1, console: Console | None = None, announce: Announce | None = None) -> list[Outcome]:
        """Train trials until there are as many as asked for, ``jobs`` at a time."""
        if jobs < 1:
            raise RecipeError(f"jobs must be at least 1, got {jobs}")
        console = console or Console(quiet=True)
        validate(self.recipe)
        check_space(self.space, self.recipe)
        self._check_folder()
        table = opened(self.recipe, console, announce).table
        protocol = Protocol(self.recipe.protocol, table)
        protocol.check_trainable()
        if protocol.selects_on != "validation":
            raise DataError(
                f"{table.name!r} has too few classes to hold any out for validation, and a search must not choose by "
                f"the test classes: add classes, or change protocol.validation_share or protocol.test_share"
            )
        with sole_writer_of(self.folder):
            study = _open(self.folder, self.pruner)
            study.set_user_attr("plan", {"recipe": self.recipe.as_mapping(), "settings": self.settings})
            try:
                if jobs > 1:
                    self._run_in_processes(study, jobs, console)
                else:
                    for number in self._numbers(study, jobs):
                        console.print(f"[bold]{number + 1} of {self.trials}[/bold], {self._label(number)}")
                        self.train(number, console)
                        self._print_end(number, console)
            except (InterruptedRunError, KeyboardInterrupt) as stop:
                done = sum(trial.state.is_finished() for trial in self.history)
                raise InterruptedRunError(
                    f"interrupted with {done} of {self.trials} trials done; the same command resumes from here"
                ) from stop
        notice_changed_images(self._run_folders())
        return []

    def train(self, number: int, console: Console) -> None:
        """Train a trial that was begun, from where it is to its end, and tell Optuna its score.

        It stays unfinished when asked to stop, and where a file or a package is missing.
        """
        optuna = require("optuna", "tune")
        study = _open(self.folder, self.pruner)
        trial = study.get_trials(deepcopy=False)[number]
        name, state = f"trials/{number:03d}", "FAIL"
        runs: list[PlannedRun] = []
        attributes: dict[str, Any] = {}
        with sole_writer_of(self.folder / name):
            try:
                if len(trial.params) < len(self.space):
                    raise RecipeError("it was killed while its values were drawn")
                row = Row(name, f"trial {number}", recipe_at(self.recipe, trial.params))
                runs = planned_runs([row], self.folder, self.seeds)
                chosen: list[Evaluation] = []
                options: dict[str, Any] = {"score_test": False}
                for planned in runs:
                    with ConsoleObserver(console) as bar:
                        # The first seed alone is compared with other trials; what survives gets the other seeds.
                        bar.others += [] if chosen else [_Pruning(study, trial)]
                        options |= {"progress": bar.decoding, "resume": planned.folder.is_begun}
                        chosen.append(run(planned.recipe, planned.folder, bar, **options).chosen)
                scores = [float(best.get(self.select_by, math.nan)) for best in chosen]
                if not all(map(math.isfinite, scores)):
                    raise RecipeError(f"no {self.select_by} was measured on the validation classes")
                state, attributes = "COMPLETE", {"scores": scores, "epochs": [best["epoch"] for best in chosen]}
            except (InterruptedRunError, DataError, MissingExtraError):
                raise
            except optuna.TrialPruned:
                state = "PRUNED"
            except TrainingError as error:
                # The sampler sees it as pruned, and looks elsewhere.
                state, attributes = "PRUNED", {"reason": str(error)}
            except (NearkinError, ValueError) as error:
                attributes = {"reason": str(error)}
            _end(study, number, runs, state, **attributes)

    def failure(self, outcomes: Sequence[Outcome]) -> tuple[str, int] | None:
        """A trial may fail; a search has failed only when all have."""
        if self.ranking:
            return None
        reasons = (trial.user_attrs.get("reason") for trial in self.history)
        return f"no trial has finished: {next(filter(None, reasons), 'all were pruned')}", TrainingError.exit_code

    def table(self) -> Table:
        """The best trials; the records are all trials, in the order in which they were begun."""
        cells = []
        for trial in self.ranking[:SHOWN]:
            epochs = " ".join(f"{epoch:g}" for epoch in trial.user_attrs["epochs"])
            score = score_text(Statistic.of(trial.user_attrs["scores"]), self.select_by)
            cells.append([str(trial.number), score, epochs, *(value_text(trial.params[key]) for key in self.space)])
        columns = ["trial", f"{self.select_by} (%)", "epoch", *self.space]
        parts = (Part.of(columns, cells, texts=0),) if cells else ()
        loss, method = self.recipe.objective.name, self.recipe.method.name
        title = f"Search on {Path(self.recipe.data.source).stem}: {loss}" + (f", {method}" if method != "plain" else "")
        ended = [(trial, trial.user_attrs.get("reason")) for trial in self.history]
        notes = [f"Trial {trial.number} {STATUS[trial.state.name]}: {reason}" for trial, reason in ended if reason]
        return Table(title, parts, tuple(self._conditions()), tuple(notes), tuple(self._records()))

    def record(self) -> dict[str, Any]:
        best = self.ranking[0].number if self.ranking else None
        known = {"folder": str(self.folder), "select_by": self.select_by, "best": best}
        return known | {"conditions": self._conditions(), "trials": self._records()}

    def write(self) -> list[Path]:
        """Write ``trials.csv`` and ``tuning.md``; with a finished trial also ``best.yaml`` and Optuna's plots."""
        table = self.table()
        texts = {"tuning.md": markdown(table), "trials.csv": csv_text(table)}
        if not self.ranking:
            return write_texts(self.folder, texts)
        best = recipe_at(self.recipe, self.ranking[0].params).to_yaml()
        what = f"best of {counted(len(self.history), 'trial')} by {self.select_by} on validation classes"
        command = shlex.join(["nearkin", "train", str(self.folder / "best.yaml")])
        texts["best.yaml"] = f"# {table.title}, {what}\n# {command}\n{best}"
        texts["tuning.md"] += f"\nThe best, scored on the test classes:\n\n```sh\n{self.next_steps()[0]}\n```\n"
        return write_texts(self.folder, texts) + self._draw()

    def next_steps(self) -> list[str]:
        """The command that trains the best trial on three seeds and scores it on the test classes."""
        best, runs = (shlex.quote(str(self.folder / name)) for name in ("best.yaml", "best/seed-"))
        command = f"for seed in 0 1 2; do nearkin train {best} training.seed=$seed -o {runs}$seed; done"
        return [command] if self.ranking else []

    def _check_folder(self) -> None:
        """A folder is only resumed by the search it was begun with."""
        folder = self.folder
        if (folder / JOURNAL).is_file():
            if changed := differences(Search.read(folder)._deciding(), self._deciding()):
                raise RecipeError(
                    f"{folder} holds another search ({'; '.join(changed.values())}): only --trials and --jobs may "
                    f"change; for another search give another folder with -o"
                )
        elif folder.is_file() or RunFolder(folder).is_begun:
            raise RecipeError(f"{folder} is a file or holds a run: give another folder for the search with -o")

    def _deciding(self) -> dict[str, Any]:
        """What decides the course of a search, key by key: a recipe's device, for one, does not."""
        return {**deciding(self.recipe), **self.settings, "space": " ".join(self.settings["space"])}

    def _numbers(self, study: Any, jobs: int) -> Iterator[int]:
        """Trials that were begun and have not ended, then new ones."""
        samplers = require("optuna.samplers", "tune")
        yield from [trial.number for trial in self.history if not trial.state.is_finished()]
        known = len(study.get_trials(deepcopy=False))
        for point in grid(self.space)[known : self.trials] if self.sampler == "grid" else ():
            study.enqueue_trial(point)
        while (number := len(self.history)) < self.trials:
            # A new sampler for each trial, so that an interruption does not change what the next one gets.
            seed = int(np.random.SeedSequence([self.seed, number]).generate_state(1)[0])
            study.sampler = samplers.RandomSampler(seed=seed)
            if self.sampler == "tpe":
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # that constant_liar is experimental
                    study.sampler = samplers.TPESampler(seed=seed, constant_liar=jobs > 1)
            yield study.ask(self.space).number

    def _run_in_processes(self, study: Any, jobs: int, console: Console) -> None:
        """Ask for trials here, train each in a process of its own, and record as failed those whose process dies."""
        missing: list[NearkinError] = []

        def on_end(number: int, code: int, message: str) -> None:
            if not self._is_done(number):
                missing.extend(error(message) for error in (DataError, MissingExtraError) if code == error.exit_code)
                if missing or code in (InterruptedRunError.exit_code, BusyError.exit_code):
                    return  # what is missing would be missing in the other trials, too
                _end(study, number, [], "FAIL", reason=message)
            self._print_end(number, console)

        def training_jobs() -> Iterator[Job]:
            for number in self._numbers(study, jobs):
                command = ["-m", "nearkin.studies.tune", str(self.folder), str(number)]
                log = self.folder / "trials" / f"{number:03d}" / LOG
                yield Job(self._label(number), command, log, partial(self._is_done, number), partial(on_end, number))
                if missing:
                    return

        left = self.trials - sum(trial.state.is_finished() for trial in self.history)
        run_in_parallel(training_jobs(), at_once=jobs, total=left, console=console)
        if missing:
            raise missing[0]

    def _is_done(self, number: int) -> bool:
        return bool(self.history[number].state.is_finished())

    def _label(self, number: int) -> str:
        values = (f"{key}={value_text(value)}" for key, value in self.history[number].params.items())
        return f"trial {number}: {' '.join(values)}"

    def _print_end(self, number: int, console: Console) -> None:
        trial = self.history[number]
        reason = trial.user_attrs.get("reason")
        text = f"trial {number}: {STATUS[trial.state.name]}" + (f": {reason}" if reason else "")
        text += "" if trial.value is None else f", {self.select_by} {100 * trial.value:.1f}"
        for best in self.ranking[:1]:
            text += f"; best so far trial {best.number}, {100 * best.value:.1f}"
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    def _run_folders(self) -> list[RunFolder]:
        return [RunFolder(file.parent) for file in sorted(self.folder.glob("trials/*/seed-*/environment.json"))]

    def _conditions(self) -> list[str]:
        """What the scores hold for, and how the trials ended."""
        count = Counter(STATUS[trial.state.name] for trial in self.history)
        environments = [folder.environment() for folder in self._run_folders()]
        parts = [
            f"{counted(len(self.history), 'trial')}: " + ", ".join(f"{n} {status}" for status, n in count.items()),
            f"{self.sampler} sampler, seed {self.seed}, {'no' if self.pruner == 'none' else self.pruner} pruner",
            f"{self.recipe.protocol.name} protocol, {' and '.join(sorted({run.selection for run in environments}))}",
            f"seeds {', '.join(map(str, self.seeds))}" if len(self.seeds) > 1 else "one seed, so no spread",
            budget_text(self.recipe),
            *sorted({run.hardware for run in environments}),
        ]
        return ["; ".join(parts) + ".", "The test classes have not been looked at."]

    def _records(self) -> list[dict[str, Any]]:
        """Every trial with its values, scores as fractions with all their digits."""
        records = []
        for trial in self.history:
            reached = max(trial.intermediate_values.values(), default=None) if trial.value is None else trial.value
            record = {"trial": trial.number, "status": STATUS[trial.state.name], self.select_by: reached}
            record |= {key: value_text(trial.params[key]) if key in trial.params else None for key in self.space}
            record |= {key: trial.user_attrs.get(key) for key in ("scores", "epochs", "seconds", "reason")}
            records.append(record)
        return records

    def _draw(self) -> list[Path]:
        """Optuna's plots: the history, and every parameter alone."""
        plots = require("optuna.visualization.matplotlib", "tune")
        study, files = _open(self.folder), []
        target = {"target": lambda trial: 100 * trial.value, "target_name": f"{self.select_by} on validation (%)"}
        for name, plot in (("history", plots.plot_optimization_history), ("parameters", plots.plot_slice)):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that these plots are experimental, and that an axis has one value
                figure = np.ravel(plot(study, **target))[0].figure
            files.append(self.folder / f"{name}.png")
            save_figure(figure, files[-1], dpi=130)
            require("matplotlib.pyplot", "tune").close(figure)
        return files


class _Pruning(Observer):
    """Reports every score to Optuna, and stops the trial when its pruner says so."""

    def __init__(self, study: Any, frozen: Any) -> None:
        optuna = require("optuna", "tune")
        self.trial, self.stop = optuna.trial.Trial(study, frozen._trial_id), optuna.TrialPruned
        self.known = set(frozen.intermediate_values)

    def on_evaluation(self, state: TrainingState, row: Evaluation) -> None:
        score = row.get(state.protocol.select_by, math.nan)
        if state.step == 0 or math.isnan(score):
            return
        number = len(state.history) - 1  # the first was before training
        if number not in self.known:  # a trial that was killed comes to the same evaluation again
            self.trial.report(score, number)
        if state.step < state.total_steps and self.trial.should_prune():
            raise self.stop


def _open(folder: Path, pruner: str = "none") -> Any:
    """Optuna's study, kept as a journal that several processes may write to."""
    optuna = require("optuna", "tune")
    journal = require("optuna.storages.journal", "tune")
    # The first evaluations prune nothing: early scores say little, above all during a warm-up.
    median = optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=3)
    return optuna.create_study(
        study_name="tune",
        storage=optuna.storages.JournalStorage(journal.JournalFileBackend(str(folder / JOURNAL))),
        direction="maximize",
        pruner=optuna.pruners.NopPruner() if pruner == "none" else median,
        load_if_exists=True,
    )


def _end(study: Any, number: int, runs: Sequence[PlannedRun], state: str, **attributes: Any) -> None:
    """Record the end of a trial. Its checkpoints go first, so that after an interruption it is trained again."""
    optuna = require("optuna", "tune")
    for planned in runs:
        for file in planned.folder.checkpoints.glob("*.pt"):
            file.unlink()
    last = [row for planned in runs for row in planned.folder.evaluations()[-1:]]
    attributes["seconds"] = round(sum(row["seconds"] or 0.0 for row in last), 1)
    trial = optuna.trial.Trial(study, study.get_trials(deepcopy=False)[number]._trial_id)
    for key, value in attributes.items():
        trial.set_user_attr(key, value)
    value = statistics.fmean(attributes["scores"]) if state == "COMPLETE" else None
    study.tell(number, value, state=optuna.trial.TrialState[state])


def main(folder: str, number: str) -> None:
    """Train one trial in this process; an error goes to the output as its last line."""
    console = Console(width=200)
    try:
        Search.read(folder).train(int(number), console)
    except NearkinError as error:
        console.print(f"error: {error}", markup=False, highlight=False, soft_wrap=True)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main(*sys.argv[1:])
