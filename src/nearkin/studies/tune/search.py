"""The whole of a search: trials one after another in this process, or several at a time in processes of their own."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from nearkin.errors import DataError, InterruptedRunError, MissingExtraError, NearkinError, RecipeError, require
from nearkin.evaluation.protocol import Protocol
from nearkin.runs.data import open_data, report_on, say_if_images_differ
from nearkin.runs.data_report import Announce
from nearkin.runs.folder import RunFolder
from nearkin.runs.lock import sole_writer_of
from nearkin.studies.pool import LOG, POLL_SECONDS, last_words
from nearkin.studies.tune.plan import Plan, admit, check_plan
from nearkin.studies.tune.trials import (
    Tuning,
    ask,
    carry_out,
    frozen_trials,
    give_up,
    label_of,
    open_study,
    read_tuning,
    told,
    trial_folder,
    unfinished,
)
from nearkin.training.interrupt import StopRequest
from nearkin.training.observers import ConsoleObserver


def tune(
    plan: Plan,
    folder: str | Path,
    *,
    trials: int | None = None,
    jobs: int = 1,
    console: Console | None = None,
    announce: Announce | None = None,
) -> Tuning:
    """Carry out ``plan`` in ``folder`` until it has ``trials`` trials, those from before included.

    Args:
        plan: what to search; its protocol must hold out validation classes.
        folder: where everything goes; where it holds the same search already, that is gone on with.
        trials: how many in all; default 20, and for a grid as many as it has points.
        jobs: trials at a time. One is trained in this process, several in processes of their own, to fill a GPU.
        console: where progress goes.
        announce: told what was understood of the data, before anything is trained.

    Raises:
        RecipeError: before anything is trained, where the plan cannot be followed or the folder holds another.
        DataError: where the data leave no validation classes; or later, where a trial misses a file.
        InterruptedRunError: after Ctrl-C or SIGTERM; calling again goes on.
    """
    require("optuna", "tune")
    console = console or Console(quiet=True)
    if jobs < 1 or (trials is not None and trials < 1):
        raise RecipeError(f"trials and jobs must be at least 1, got {trials} and {jobs}")
    check_plan(plan)
    _check_data(plan, console, announce)
    folder, wanted = Path(folder), plan.trials(trials)
    if folder.exists() and not folder.is_dir():
        raise RecipeError(f"{folder} is a file: give a folder for the search with -o")
    with sole_writer_of(folder):
        admit(plan, folder)
        try:
            if jobs == 1:
                _one_by_one(plan, folder, wanted, console)
            else:
                _side_by_side(plan, folder, wanted, jobs, console)
        except (InterruptedRunError, KeyboardInterrupt) as stop:
            done = sum(trial.status != "unfinished" for trial in read_tuning(folder).trials)
            raise InterruptedRunError(
                f"interrupted with {done} of {wanted} trials done; what was begun is saved in {folder}. "
                f"The same command goes on from here"
            ) from stop
    say_if_images_differ(RunFolder(file.parent) for file in sorted(folder.glob("trials/*/seed-*/recipe.yaml")))
    return read_tuning(folder)


def _check_data(plan: Plan, console: Console, announce: Announce | None) -> None:
    with ConsoleObserver(console) as observer:
        data = open_data(plan.recipe.data, progress=observer.decoding)
    if announce is not None:
        announce(report_on(plan.recipe, data))
    protocol = Protocol(plan.recipe.protocol, data.table)
    protocol.check_trainable()
    if protocol.selects_on != "validation":
        raise DataError(
            f"{data.table.name!r} has too few classes to hold any out for validation, and a search must not choose by "
            f"the test classes: add classes, or change protocol.validation_share "
            f"({plan.recipe.protocol.validation_share:g}) or protocol.test_share ({plan.recipe.protocol.test_share:g})"
        )


def _one_by_one(plan: Plan, folder: Path, wanted: int, console: Console) -> None:
    study = open_study(plan, folder)
    begun = unfinished(study)
    while begun or len(frozen_trials(study)) < wanted:
        number = begun.pop(0) if begun else ask(plan, study)
        console.print(f"[bold]{number + 1} of {wanted}[/bold], {label_of(plan, study, number)}", highlight=False)
        carry_out(plan, folder, number, console)
        console.print(told(folder, number), highlight=False, markup=False, soft_wrap=True)


def _side_by_side(plan: Plan, folder: Path, wanted: int, jobs: int, console: Console) -> None:
    """Ask for trials here, train each in a process of its own, and give up those whose process dies."""
    study = open_study(plan, folder)
    begun = unfinished(study)
    running: dict[int, Any] = {}
    missing: NearkinError | None = None
    asked_to_stop = False
    # A forked process could not use CUDA.
    spawn = multiprocessing.get_context("spawn")
    threads = max(1, (os.cpu_count() or 1) // jobs)
    with StopRequest() as stop:
        try:
            while True:
                more = not stop.requested and missing is None
                while more and len(running) < jobs and (begun or len(frozen_trials(study)) < wanted):
                    number = begun.pop(0) if begun else ask(plan, study, jobs=jobs)
                    console.print(f"begins: {label_of(plan, study, number)}", highlight=False)
                    running[number] = spawn.Process(target=train_trial, args=(str(folder), number, threads))
                    running[number].start()
                if not running:
                    break
                if not more and not asked_to_stop:
                    asked_to_stop = True
                    for process in running.values():
                        process.terminate()  # its trial saves itself
                for number, process in list(running.items()):
                    if process.is_alive():
                        continue
                    process.join()
                    del running[number]
                    missing = _after(study, folder, number, process.exitcode, asked_to_stop, console) or missing
                time.sleep(POLL_SECONDS)
        finally:
            for process in running.values():
                process.kill()
                process.join()
    if missing is not None:
        raise missing
    if stop.requested and (unfinished(study) or len(frozen_trials(study)) < wanted):
        raise InterruptedRunError("interrupted; the same command goes on")


def _after(study: Any, folder: Path, number: int, code: int, stopped: bool, console: Console) -> NearkinError | None:
    """What the end of a trial's process means; an error where no other trial will fare better."""
    if number in unfinished(study):
        said = last_words(trial_folder(folder, number) / LOG)
        for kind in (DataError, MissingExtraError):
            if code == kind.exit_code:
                return kind(said)
        if stopped or code == InterruptedRunError.exit_code:
            return None
        give_up(study, number, f"killed by signal {-code}; it said: {said}" if code < 0 else said)
    console.print(told(folder, number), highlight=False, markup=False, soft_wrap=True)
    return None


def train_trial(folder: str, number: int, threads: int) -> None:
    """Carry out one trial as a process of its own; what it says goes to a file beside its runs."""
    log = trial_folder(Path(folder), number) / LOG
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "a", encoding="utf-8") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        threading.Thread(target=_stop_with_parent, daemon=True).start()
        torch.set_num_threads(threads)
        console = Console(file=output, width=200)
        try:
            carry_out(Plan.read(folder), Path(folder), number, console)
        except NearkinError as error:
            console.print(f"error: {error}", markup=False, highlight=False, soft_wrap=True)
            sys.exit(error.exit_code)


def _stop_with_parent() -> None:
    """Ask this process to save itself and end, once the one that started it is gone, killed for instance."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)
