"""The one training loop: batches → steps → evaluations → checkpoints.

The loop does not know which method or loss it runs: a method changes it through hooks
(:class:`~nearkin.training.state.Method`).
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import threading
import time
from types import FrameType
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.optim.lr_scheduler import ReduceLROnPlateau

from nearkin import ranks
from nearkin.data.loader import Batch, TrainingLoader
from nearkin.errors import InterruptedRunError, RecipeError, TrainingError, notice
from nearkin.numerics import at_least_float32
from nearkin.training import checkpoint
from nearkin.training.build import start_head
from nearkin.training.checkpoint import BackgroundWriter
from nearkin.training.collapse import spread
from nearkin.training.device import autocast
from nearkin.training.folder import TrainingFolder
from nearkin.training.memory import place_images
from nearkin.training.micro_batch import embed_in_pieces
from nearkin.training.optimisation import add_up_gradients, clip_gradients
from nearkin.training.state import Evaluation, Observer, TrainingState


def fit(state: TrainingState, folder: TrainingFolder, observer: Observer, *, finish: bool = False) -> None:
    """Train from the present step of ``state`` to the end of its recipe, with checkpoints in ``folder``.

    With ``finish`` the training ends at the present step, with an evaluation if it has none. After Ctrl-C or SIGTERM
    the loop completes its step, writes a checkpoint and raises an error that says how to continue.
    """
    training = state.recipe.training
    if training.early_stop_patience is not None and state.protocol.selection_set() is None:
        raise RecipeError(
            "training.early_stop_patience needs scores, and these data leave no classes to hold out: leave it out"
        )
    written, saved_step, writer = time.monotonic(), -1, BackgroundWriter()
    state.on_scoring = observer.on_scoring
    observer.on_start(state)
    place_images(state)

    if state.step == 0 and not state.history:
        evaluate(state, folder, observer, writer)
        if state.protocol.test is not None and state.untrained is None:
            state.untrained = state.score(state.protocol.test, baseline=True)
        start_head(state)
        state.method.start(state)
    state.ended = state.ended or finish
    if (state.ended or state.step >= state.total_steps) and state.history[-1]["step"] < state.step:
        evaluate(state, folder, observer, writer)
    health, agreement = HealthCheck(state), ranks.Agreement()
    state.loader = TrainingLoader(
        state.train_set.selected if state.on_device is None else state.on_device,
        state.labels,
        state.transform,
        state.sampler,
        seed=training.seed,
        first_batch=state.step,
        workers=state.recipe.data.workers,
        device=state.device if state.device.type == "cuda" else None,
    )
    with StopRequest() as stop, writer, state.loader as loader:
        batches, stopping = iter(loader), False
        while state.step < state.total_steps and not state.ended and not stopping:
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
                # Where evaluations follow each other faster than the disk writes, training does not wait for the disk.
                if is_end or overdue or ranks.world() > 1 or not writer.is_busy:
                    with state.time.on("checkpoints"):
                        checkpoint.save_last(state, folder, writer)
                    written, saved_step = time.monotonic(), state.step
        health.settle()
        with state.time.on("checkpoints"):
            if saved_step != state.step:
                checkpoint.save_last(state, folder, writer)
            writer.wait()
            ranks.wait_for_all()  # another rank may read the checkpoint
        if stopping and state.step < state.total_steps and not state.ended:
            raise InterruptedRunError(
                f"interrupted after step {state.step} of {state.total_steps}. Continue with the same command and "
                f"--resume, or end it here with: nearkin train {folder.path} --finish"
            )


def train_step(state: TrainingState, batch: Batch, health: HealthCheck) -> float:
    """One step of the optimiser. Returns the loss, on a GPU that of the previous step, so that nothing waits."""
    epoch, batches_into_it = divmod(state.step, state.sampler.batches_per_epoch)
    if not batches_into_it and hasattr(state.objective, "begin_epoch"):
        state.objective.begin_epoch(epoch)  # type: ignore[operator]
    _set_warmup(state)
    for module in (state.encoder, state.objective):
        if not module.training:  # checked first, as train() walks all modules
            module.train()
    images = batch.images.to(state.device, non_blocking=True)
    labels = batch.labels.to(state.device, non_blocking=True)
    embeddings = ranks.gather_rows(_embed_batch(state, images), len(batch.rows))
    state.batch_embeddings = embeddings.detach()
    try:
        loss = state.method.loss(state, embeddings, labels, batch)
    except ValueError:
        if bool(embeddings.isfinite().all()):
            raise
        health.diverged(batch, f"the embeddings are not finite at step {state.step}")
    state.optimiser.zero_grad(set_to_none=True)
    state.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
    add_up_gradients(state.optimiser)
    state.scaler.unscale_(state.optimiser)
    state.add_l2_sp()
    state.method.adjust_gradients(state)
    value = health.watch(batch, loss)
    clip_gradients(state.optimiser, state.recipe.training)
    state.scaler.step(state.optimiser)
    state.scaler.update()
    if state.ema is not None:
        state.ema.update()
    state.step += 1
    state.method.after_step(state)
    return value


def _embed_batch(state: TrainingState, images: Tensor) -> Tensor:
    """Embeddings of a batch, with gradient; in micro-batches where the state says so."""

    def encode(images: Tensor) -> Tensor:
        with autocast(state.device, state.dtype):
            return state.encoder(images)  # type: ignore[no-any-return]

    pieces = state.pieces(images)
    if len(pieces) == 1:
        with autocast(state.device, state.dtype):
            return state.encode(images)
    if state.step < state.warmup_steps:  # a frozen backbone keeps nothing for a backward pass
        return torch.cat([encode(piece) for piece in pieces])
    return embed_in_pieces(encode, pieces, [weight for weight in state.weights if weight.requires_grad])


def _set_warmup(state: TrainingState) -> None:
    """During warm-up the backbone's parameters take no gradient; its optimiser group then skips them."""
    trains = state.step >= state.warmup_steps
    for group in state.optimiser.param_groups:
        if group["name"] == "backbone" and group["params"][0].requires_grad != trains:
            for parameter in group["params"]:
                parameter.requires_grad_(trains)


def evaluate(state: TrainingState, folder: TrainingFolder, observer: Observer, writer: BackgroundWriter) -> bool:
    """Score the selection classes, keep the best weights, write the table; True where training has to end."""
    part = state.protocol.selection_set()
    row: Evaluation = {"epoch": round(state.epoch, 4), "step": state.step}
    if losses := state.recent_losses:
        row["loss"] = round(math.fsum(losses) / len(losses), 6)
    if state.batch_embeddings is not None:
        row["spread"] = float(f"{spread(state.batch_embeddings):.3g}")
    row["lr"] = state.optimiser.param_groups[0]["lr"]
    scores = state.score(part, baseline=not state.step) if part is not None else {}
    if not state.step and part is not None and part is state.protocol.test:
        state.untrained = scores
    row |= scores
    row["seconds"] = round(state.time.seconds, 3)
    had_collapsed = state.collapse is not None
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
    if not had_collapsed and (collapse := state.collapse) is not None and ranks.is_first():
        notice(f"{folder.path}: {collapse} This run trains on.")
    return bool(state.step) and (state.method.after_evaluation(state, scores) or _has_converged(state))


def _has_converged(state: TrainingState) -> bool:
    """Whether the evaluations without a new best have reached the patience of the recipe, or else of its method."""
    protocol = state.protocol
    patience = state.recipe.training.early_stop_patience or state.method.early_stop_patience
    # Scores of the test classes must not decide how long to train, unless the recipe says that they may.
    may_end = {"validation": True, "test": protocol.section.monitor_test, "last": False}
    if patience is None or not may_end[protocol.selects_on]:
        return False
    best = state.best or {}
    best_step = 0 if math.isnan(best.get(protocol.select_by, math.nan)) else best["step"]
    return sum(row["step"] > best_step for row in state.history) >= patience


class HealthCheck:
    """Finds a loss that is not finite: before the optimiser's step on a CPU, one step later on an accelerator.

    Reading a value from an accelerator waits for all work queued there, so a step's loss is copied while the next step
    runs. Before a checkpoint is written, the last step is checked (:meth:`settle`).
    """

    def __init__(self, state: TrainingState) -> None:
        self.state = state
        self._pending: tuple[int, Batch, Tensor] | None = None
        self._copied = torch.cuda.Event() if state.device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._latest = math.nan

    def watch(self, batch: Batch, loss: Tensor) -> float:
        """Take the loss of a step after its backward pass; returns the latest that is known to be finite."""
        self.settle()  # before the event is recorded again
        loss = at_least_float32(loss.detach())
        self._pending = (self.state.step, batch, loss.to("cpu", non_blocking=True))
        if self._copied is not None:
            self._copied.record(torch.cuda.current_stream(self.state.device))
        elif loss.device.type == "cpu":
            self.settle()
        return self._latest

    def settle(self) -> None:
        """Wait for the last step's loss and check it."""
        if self._pending is None:
            return
        if self._copied is not None:
            self._copied.synchronize()
        (step, batch, copied), self._pending = self._pending, None
        loss = copied.item()
        if not math.isfinite(loss):
            self.diverged(batch, f"the loss became {loss} at step {step}")
        self._latest = loss
        self.state.recent_losses.append(loss)

    def diverged(self, batch: Batch, what: str) -> NoReturn:
        ids = self.state.train_set.ids(batch.rows)
        shown = ", ".join(ids[:8]) + (f", … ({len(ids)} in all)" if len(ids) > 8 else "")
        raise TrainingError(
            f"{what}. Images of the batch: {shown}. The last checkpoint is untouched. A smaller "
            f"training.learning_rate, training.max_grad_norm=10 or training.precision=float32 usually helps."
        )


class StopRequest:
    """While active, the first Ctrl-C or SIGTERM sets ``requested``; a second Ctrl-C interrupts at once.

    >>> with StopRequest() as stop:
    ...     signal.raise_signal(signal.SIGTERM)
    ...     stop.requested
    True
    """

    def __init__(self) -> None:
        self.requested = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        # Only the main thread may set handlers; in others the caller's stay in place.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.requested = True
        if number == signal.SIGINT and ranks.is_first():
            with contextlib.suppress(OSError):  # print is not safe here: the signal may have interrupted another
                os.write(2, b"\nFinishing this step, then saving. Ctrl-C again stops at once, without saving.\n")
