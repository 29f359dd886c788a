"""The one training loop: batches → steps → evaluations → checkpoints.

The loop never asks which method or loss it runs; what a method changes goes through its hooks
(:class:`~nearkin.training.state.Method`), and what a run needs to go on after an interruption is in
:class:`~nearkin.training.state.TrainingState`.
"""

from __future__ import annotations

import math
import time

from torch.optim.lr_scheduler import ReduceLROnPlateau

from nearkin import ranks
from nearkin.data.loader import TrainingLoader
from nearkin.errors import InterruptedRunError, RecipeError
from nearkin.training import checkpoint
from nearkin.training.background import BackgroundWriter
from nearkin.training.folder import TrainingFolder
from nearkin.training.head_start import start_head
from nearkin.training.health import HealthCheck
from nearkin.training.image_placement import place_images
from nearkin.training.interrupt import StopRequest
from nearkin.training.state import Evaluation, Observer, TrainingState
from nearkin.training.step import train_step


def fit(state: TrainingState, folder: TrainingFolder, observer: Observer) -> None:
    """Train from where ``state`` is to the end of its recipe, leaving checkpoints in ``folder``.

    Ctrl-C and SIGTERM end the step in hand, write a checkpoint and raise an error that says how to go on.
    """
    training = state.recipe.training
    if training.early_stop_patience is not None and state.protocol.selection_set() is None:
        raise RecipeError(
            "training.early_stop_patience needs scores, and these data leave no classes to hold out: leave it out"
        )
    written, saved = time.monotonic(), -1
    state.time.begin()
    state.watch = getattr(observer, "on_scoring", None)
    place_images(state)

    if state.step == 0 and not state.history:
        evaluate(state, folder, observer, None)
        if state.protocol.test is not None and state.untrained is None:
            state.untrained = state.score(state.protocol.test, baseline=True)
        start_head(state)
        state.method.start(state)
    health, agreement = HealthCheck(state), ranks.Agreement()
    with (
        StopRequest() as stop,
        BackgroundWriter() as writer,
        TrainingLoader(
            state.train_set.selected if state.on_device is None else state.on_device,
            state.labels,
            state.transform,
            state.sampler,
            seed=training.seed,
            first_batch=state.step,
            workers=state.recipe.data.workers,
            pin_memory=state.device.type == "cuda",
            device=state.device if state.device.type == "cuda" else None,
        ) as loader,
    ):
        state.loader = loader
        batches = iter(loader)
        while state.step < state.total_steps and not state.ended:
            with state.time.on("steps"):
                batch = next(batches)
                loss = train_step(state, batch, health)
            writer.check()
            observer.on_step(state, loss, len(batch.rows))
            epoch_ended = state.step % state.sampler.batches_per_epoch == 0
            if epoch_ended and not isinstance(state.scheduler, ReduceLROnPlateau):
                state.scheduler.step()
            due = state.step == state.total_steps or state.step % state.evaluation_interval == 0
            overdue = time.monotonic() - written > 60 * training.checkpoint_minutes
            if overdue:
                written = time.monotonic()
            stopping, overdue = agreement.on(stop.requested, overdue)
            if due or stopping or overdue:
                with state.time.on("steps"):
                    health.settle()
                if due:
                    state.ended = evaluate(state, folder, observer, writer)
                is_end = stopping or state.ended or state.step == state.total_steps
                # Where evaluations follow each other faster than the disk writes, training does not wait for it.
                if is_end or overdue or ranks.world() > 1 or not writer.is_busy:
                    with state.time.on("checkpoints"):
                        checkpoint.save_last(state, folder, writer)
                    written, saved = time.monotonic(), state.step
            if stopping and state.step < state.total_steps and not state.ended:
                _finish(state, writer)
                raise InterruptedRunError(
                    f"interrupted after step {state.step} of {state.total_steps}; everything is in {folder.path}. "
                    f"Continue with the same command and --resume"
                )
        health.settle()
        if saved != state.step:
            with state.time.on("checkpoints"):
                checkpoint.save_last(state, folder, writer)
        _finish(state, writer)


def evaluate(state: TrainingState, folder: TrainingFolder, observer: Observer, writer: BackgroundWriter | None) -> bool:
    """Score the selection classes, keep the best, write the table; True when this was the last evaluation."""
    part = state.protocol.selection_set()
    row: Evaluation = {"epoch": round(state.epoch, 4), "step": state.step}
    if losses := state.recent_losses:
        row["loss"] = round(math.fsum(losses) / len(losses), 6)
    row["lr"] = state.optimiser.param_groups[0]["lr"]
    scores = state.score(part, baseline=not state.step) if part is not None else {}
    if not state.step and part is not None and part is state.protocol.test:
        state.untrained = scores
    row |= scores
    row["seconds"] = round(state.time.seconds, 3)
    state.history.append(row)
    state.recent_losses.clear()
    selected = scores.get(state.protocol.select_by, math.nan)
    if isinstance(state.scheduler, ReduceLROnPlateau) and state.step and scores:
        state.scheduler.step(selected)
    # An untrained network is not a result: only evaluations after the first step compete for the best.
    if state.step and (state.best is None or state.protocol.is_better(scores, state.best)):
        state.best = dict(row)
        with state.time.on("checkpoints"):
            checkpoint.save_best(state, folder, writer)
    folder.write_evaluations(state.history)
    observer.on_evaluation(state, row)
    return bool(state.step) and (state.method.after_evaluation(state, scores) or _has_converged(state))


def _has_converged(state: TrainingState) -> bool:
    """Whether as many evaluations have brought no new best as end the run: by the recipe, or else by its method.

    Scores of the test classes must not decide how long to train, unless the recipe says that they may.
    """
    protocol, limit = state.protocol, state.recipe.training.early_stop_patience or state.method.early_stop_patience
    may_end = {"validation": True, "test": protocol.section.monitor_test, "last": False}
    if limit is None or not may_end[protocol.selects_on]:
        return False
    best = state.best or {}
    since = 0 if math.isnan(best.get(protocol.select_by, math.nan)) else best["step"]
    return sum(row["step"] > since for row in state.history) >= limit


def _finish(state: TrainingState, writer: BackgroundWriter) -> None:
    """Go on when the checkpoint is on the disk, which another rank may read."""
    with state.time.on("checkpoints"):
        writer.wait()
        ranks.wait_for_all()
