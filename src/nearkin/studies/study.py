"""Studies: named rows × seeds, each a whole run in a folder of its own, and what they come to.

A study can be stopped and begun again at any time. What is finished is kept, what was begun is continued, and a run
that cannot be carried out is recorded with its reason while the others go on.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from rich.console import Console

from nearkin.disk import make_folder, write_atomically
from nearkin.errors import BusyError, DataError, InterruptedRunError, MissingExtraError, NearkinError, RecipeError
from nearkin.evaluation.protocol import SELECTED_ON_TEST, select_by
from nearkin.recipe import Recipe
from nearkin.runs.admission import admit_all
from nearkin.runs.data import say_if_images_differ
from nearkin.runs.folder import RunFolder
from nearkin.runs.lock import sole_writer_of
from nearkin.runs.run import run
from nearkin.studies.pool import train_side_by_side
from nearkin.studies.statistics import difference as difference
from nearkin.studies.statistics import figure as figure
from nearkin.studies.statistics import rank_correlation as rank_correlation
from nearkin.suggest import did_you_mean
from nearkin.training.observers import ConsoleObserver

METRICS = ("R@1", "MAP@R", "nDCG@8", "covering_radius")
COMPARED = ("R@1", "MAP@R")
"""The scores by which a row is held against its base, and of which the conventional protocol also gives the last."""

Status = Literal["finished", "failed", "skipped", "unfinished"]


@dataclass(frozen=True)
class Row:
    """A line of a table: a recipe that is run once per seed."""

    name: str
    """Also the name of its folder."""
    title: str
    recipe: Recipe
    base: str | None = None
    """The row it is held against, as C2-CCP is against C2."""


@dataclass(frozen=True)
class StudyRun:
    """One row with one seed."""

    row: Row
    seed: int
    folder: RunFolder

    @property
    def recipe(self) -> Recipe:
        return self.row.recipe.replace(training=dataclasses.replace(self.row.recipe.training, seed=self.seed))

    @property
    def label(self) -> str:
        return f"{self.row.title}, seed {self.seed}"

    @property
    def record_file(self) -> Path:
        return self.folder.path / "study.json"


@dataclass(frozen=True)
class Outcome:
    """How a run of a study ended; kept beside the run as ``study.json``."""

    row: str
    seed: int
    status: Status
    """``failed``: training broke off; ``skipped``: data, weights or an extra are missing; ``unfinished``: not yet."""
    reason: str | None = None
    exit_code: int = 0
    side_by_side: int = 1
    """How many runs shared the machine: times per step depend on it."""


def run_study(
    rows: Sequence[Row],
    folder: str | Path,
    seeds: Sequence[int],
    *,
    jobs: int = 1,
    overwrite: bool = False,
    only_rows: Iterable[str] | None = None,
    console: Console | None = None,
) -> list[Outcome]:
    """Run every row with every seed into ``folder/<row>/seed-<seed>``; one seed of all rows, then the next.

    Args:
        rows: the rows, each with a whole recipe; its seed is replaced.
        folder: where the study lies.
        seeds: one run of each row for each.
        jobs: runs at a time. One is run in this process, several as processes of their own, to fill a GPU.
        overwrite: begin anew the runs that were made with another recipe; without it they are an error.
        only_rows: names of the rows to run.
        console: where progress goes.

    Raises:
        RecipeError: before anything is run, where a recipe cannot be followed or differs from that of the folder.
        InterruptedRunError: after Ctrl-C or SIGTERM; calling again goes on.
    """
    if jobs < 1:
        raise RecipeError(f"jobs must be at least 1, got {jobs}")
    console = console or Console(quiet=True)
    runs = planned_runs(rows, folder, seeds, only_rows=only_rows)
    changed = {run.folder.path for run in runs if was_changed(run, forgive=overwrite)}
    waiting = [run for run in runs if run.folder.path in changed or not run.folder.is_finished]
    admit_all({f"row {planned.row.name!r}": planned.recipe for planned in waiting})
    busy: dict[Path, str] = {}
    if len(waiting) < len(runs):
        console.print(f"{len(runs) - len(waiting)} of {len(runs)} runs are finished already", highlight=False)
    try:
        if jobs == 1:
            for number, planned in enumerate(waiting, 1):
                console.print(f"[bold]run {number} of {len(waiting)}[/bold]: {planned.label}", highlight=False)
                try:
                    _make_ready(planned, changed)
                    _run_here(planned, console)
                except BusyError as error:
                    _leave_to_other(planned, str(error), busy, console)
        else:
            _run_side_by_side(waiting, changed, jobs, busy, console)
    except (InterruptedRunError, KeyboardInterrupt) as stop:
        done = sum(run.folder.is_finished for run in runs)
        raise InterruptedRunError(
            f"interrupted with {done} of {len(runs)} runs finished; what was begun is saved in {folder}. "
            f"The same command goes on from here"
        ) from stop
    say_if_images_differ([planned.folder for planned in runs])
    outcomes = [(planned.folder.path, outcome_of(planned)) for planned in runs]
    return [
        dataclasses.replace(outcome, reason=busy[path], exit_code=BusyError.exit_code)
        if path in busy and outcome.status == "unfinished"
        else outcome
        for path, outcome in outcomes
    ]


def planned_runs(
    rows: Sequence[Row], folder: str | Path, seeds: Sequence[int], *, only_rows: Iterable[str] | None = None
) -> list[StudyRun]:
    """Every run of a study with its folder, in the order in which they are run."""
    names = [row.name for row in rows]
    if not rows or len(set(names)) < len(names):
        raise RecipeError(f"a study needs rows with different names, got {', '.join(names) or 'none'}")
    if not seeds or len(set(seeds)) < len(seeds):
        raise RecipeError(f"a study needs seeds, each once, got {list(seeds)}")
    chosen = set(names) if only_rows is None else set(chosen_names(only_rows, names))
    return [
        StudyRun(row, seed, RunFolder(Path(folder) / row.name / f"seed-{seed}"))
        for seed in seeds
        for row in rows
        if row.name in chosen
    ]


def chosen_names(asked: Iterable[str], known: Sequence[str]) -> list[str]:
    """``asked`` in the order of ``known``, or an error that suggests the right spelling.

    >>> chosen_names(["vcpa", "mpa"], ["mpa", "mpa_ap", "vcpa"])
    ['mpa', 'vcpa']
    """
    wanted = set(asked)
    for name in sorted(wanted):
        if name not in known:
            raise RecipeError(f"no row {name!r}: {did_you_mean(name, known)}")
    return [name for name in known if name in wanted]


def outcome_of(planned: StudyRun) -> Outcome:
    """What is known of a run from its folder."""
    kept: dict[str, Any] = {}
    if planned.record_file.exists():
        with contextlib.suppress(ValueError, OSError):  # damaged, it is as good as none: the folder says the rest
            kept = json.loads(planned.record_file.read_text(encoding="utf-8"))
    if planned.folder.is_finished:
        return Outcome(planned.row.name, planned.seed, "finished", side_by_side=kept.get("side_by_side", 1))
    if kept.get("status") in ("failed", "skipped"):
        return Outcome(**kept)
    reason = "begun, not finished" if planned.folder.is_begun else "not run yet"
    return Outcome(planned.row.name, planned.seed, "unfinished", reason)


def summarise(rows: Sequence[Row], folder: str | Path, seeds: Sequence[int]) -> list[dict[str, Any]]:
    """What the runs of a study came to, one entry per row, as far as they are finished.

    Every figure is ``{"mean", "spread", "values"}``: the spread is the sample standard deviation over the seeds, None
    with a single one. ``metrics`` are those of the reported weights on the test classes; ``last`` those of the last
    epoch, which only protocols that choose on the test images have beside the best. ``chosen`` is the score by which
    validation classes chose the epoch, there and on the test classes, where there are any. ``against`` holds a row
    against its base.
    """
    by_row: dict[str, list[StudyRun]] = {}
    for planned in planned_runs(rows, folder, seeds):
        by_row.setdefault(planned.row.name, []).append(planned)
    summary = {row.name: _summary_of(row, by_row[row.name]) for row in rows}
    for entry in summary.values():
        base = summary.get(entry["base"])
        if base is not None:
            entry["against"] = {
                name: compared
                for name in COMPARED
                if (compared := difference(entry["metrics"].get(name), base["metrics"].get(name))) is not None
            }
    return list(summary.values())


def _summary_of(row: Row, runs: Sequence[StudyRun]) -> dict[str, Any]:
    for planned in runs:
        was_changed(planned, forgive=False)
    outcomes = [outcome_of(planned) for planned in runs]
    done = [planned for planned, outcome in zip(runs, outcomes, strict=True) if outcome.status == "finished"]
    scores = [planned.folder.scores() for planned in done]
    tests = [each["test"] or {} for each in scores]
    lasts = [each["last"] for each in scores] if row.recipe.protocol.name in SELECTED_ON_TEST else []

    def figures(parts: Sequence[Mapping[str, float]], names: Sequence[str]) -> dict[str, Any]:
        return {name: figure([part[name] for part in parts if name in part]) for name in names}

    def said(key: str) -> list[str]:
        return sorted({str(each[key]) for each in scores})

    shared = {outcome.side_by_side for outcome in outcomes if outcome.status == "finished"}
    return {
        "name": row.name,
        "title": row.title,
        "base": row.base,
        "objective": row.recipe.as_mapping()["objective"],
        "method": row.recipe.as_mapping()["method"],
        "budget": _budget(row.recipe),
        "seeds": [planned.seed for planned in done],
        "problems": [dataclasses.asdict(outcome) for outcome in outcomes if outcome.status != "finished"],
        "metrics": {name: value for name, value in figures(tests, METRICS).items() if value is not None},
        "last": {name: value for name, value in figures(lasts, COMPARED).items() if value is not None},
        "chosen": _chosen(row.recipe, scores),
        "untrained": figures([each["untrained"] or {} for each in scores], COMPARED),
        "step_ms": figure([each["cost"]["step_ms"] for each in scores]),
        "best_epochs": [(each["best"] or {}).get("epoch") for each in scores],
        "epochs": [each["epochs"] for each in scores],
        "side_by_side": sorted(shared),
        "recipes": [each["recipe"] for each in scores],
        "training_conditions": sorted({text for each in scores if (text := each.get("training_conditions"))}),
        **{key: said(key) for key in ("data", "protocol", "selection", "test_classes", "hardware")},
    }


def _chosen(recipe: Recipe, scores: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The score that chose the epoch, on the validation and on the test classes; empty where test classes chose."""
    name = select_by(recipe.protocol)
    both = [(each["best"] or {}, each["test"] or {}) for each in scores]
    pairs = [(best[name], test[name]) for best, test in both if name in best and name in test]
    if recipe.protocol.name in SELECTED_ON_TEST or not pairs:
        return {}
    validation, test = zip(*pairs, strict=True)
    return {"score": name, "validation": figure(validation), "test": figure(test)}


def _budget(recipe: Recipe) -> str:
    training = recipe.training
    limit = "" if training.max_steps is None else f", at most {training.max_steps} steps"
    epochs = "1 epoch" if training.epochs == 1 else f"{training.epochs} epochs"
    return f"{epochs}{limit}, batch {training.batch_size}, {training.optimiser}"


def was_changed(planned: StudyRun, *, forgive: bool) -> bool:
    """Whether the folder holds a run of another recipe; an error unless that is forgiven."""
    if not planned.folder.is_begun:
        return False
    try:
        planned.folder.check_same_recipe(planned.recipe)
    except (RecipeError, DataError) as error:
        if forgive:
            return True
        raise type(error)(f"{error}, or run what has changed anew with --overwrite") from error
    return False


def _make_ready(planned: StudyRun, changed: set[Path]) -> None:
    with sole_writer_of(planned.folder.path):
        if planned.folder.path in changed:
            planned.folder.clear()
        planned.record_file.unlink(missing_ok=True)


def _leave_to_other(planned: StudyRun, reason: str, busy: dict[Path, str], console: Console) -> None:
    """Another process is at this run; the others of the study can go on."""
    busy[planned.folder.path] = reason
    console.print(f"{planned.label}: {reason}", markup=False, highlight=False, soft_wrap=True)


def _run_here(planned: StudyRun, console: Console) -> None:
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()  # or a run would report the memory of a larger one before it
    try:
        with ConsoleObserver(console) as observer:
            resume = planned.folder.is_begun
            run(planned.recipe, planned.folder, observer, resume=resume, progress=observer.decoding)
    except (InterruptedRunError, BusyError):
        raise
    except NearkinError as error:
        _record(planned, str(error), error.exit_code, console=console)
    except (torch.OutOfMemoryError, ValueError) as error:  # a loss refuses embeddings that are not finite
        _record(planned, f"{type(error).__name__}: {error}", 1, console=console)
    else:
        _record(planned, None, 0, console=console)


def _run_side_by_side(
    waiting: Sequence[StudyRun], changed: set[Path], jobs: int, busy: dict[Path, str], console: Console
) -> None:
    def begin(planned: StudyRun) -> None:
        _make_ready(planned, changed)
        if not planned.folder.is_begun:
            planned.folder.begin(planned.recipe)

    def end(planned: StudyRun, code: int, reason: str) -> None:
        if code == BusyError.exit_code:
            _leave_to_other(planned, reason, busy, console)
            return
        _record(planned, reason, code, side_by_side=jobs, console=console)

    train_side_by_side(waiting, at_once=jobs, begin=begin, end=end, console=console)


def _record(planned: StudyRun, reason: str | None, code: int, *, side_by_side: int = 1, console: Console) -> None:
    """Keep how a run ended. Its scores count for more than its exit: they are the last thing a run writes."""
    status: Status = "finished"
    if not planned.folder.is_finished:
        missing = (DataError.exit_code, MissingExtraError.exit_code)
        status = "skipped" if code in missing else "failed"
    finished = status == "finished"
    outcome = Outcome(
        planned.row.name,
        planned.seed,
        status,
        None if finished else reason,
        0 if finished else max(code, 1),
        side_by_side,
    )
    make_folder(planned.folder.path)
    text = json.dumps(dataclasses.asdict(outcome), indent=2, ensure_ascii=False)
    write_atomically(planned.record_file, text.encode())
    if finished:
        test = planned.folder.scores()["test"] or {}
        shown = "  ".join(f"{name} {100 * test[name]:.1f}" for name in COMPARED if name in test)
        console.print(f"{planned.label}: {shown or 'finished'}", highlight=False)
    else:
        console.print(f"[red]{planned.label}: {status}[/red]: ", end="", highlight=False)
        console.print(reason, markup=False, highlight=False, soft_wrap=True)
