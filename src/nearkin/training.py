"""The one training loop: batches → encoder → objective → backward → step.

The loop never asks which method or loss it runs; what a method changes goes through its hooks
(:class:`nearkin.methods.plain.Plain`), and what a run needs to go on after an interruption is in
:class:`TrainingState`.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NoReturn, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from nearkin import checkpoint, methods
from nearkin.data.cache import OpenedImages
from nearkin.data.loader import Batch, TrainingLoader
from nearkin.data.table import ImageTable
from nearkin.data.transforms import Transform
from nearkin.device import autocast
from nearkin.embedding import embed_images
from nearkin.encoders import Encoder
from nearkin.errors import InterruptedRunError, TrainingError
from nearkin.evaluation.protocol import EvaluationSet
from nearkin.evaluation.protocol import Protocol as EvaluationProtocol
from nearkin.interrupt import StopRequest
from nearkin.numerics import at_least_float32
from nearkin.optimisation import Scheduler, clip_gradients, gradient_norms
from nearkin.recipe import Recipe
from nearkin.run_folder import RunFolder
from nearkin.samplers import BatchSampler


class Observer(Protocol):
    """Who is told how a run goes: a progress bar, TensorBoard, a test."""

    def on_step(self, state: TrainingState, loss: float, images: int) -> None: ...

    def on_evaluation(self, state: TrainingState, row: dict[str, Any]) -> None: ...


@dataclass
class TrainingState:
    """Everything a method may look at, and everything a checkpoint holds."""

    recipe: Recipe
    data: OpenedImages
    protocol: EvaluationProtocol
    transform: Transform
    encoder: Encoder
    objective: nn.Module
    method: methods.Plain
    optimiser: torch.optim.Optimizer
    scheduler: Scheduler
    scaler: torch.amp.GradScaler
    device: torch.device
    dtype: torch.dtype | None
    sampler: BatchSampler
    labels: NDArray[np.int64]
    """Labels of the training rows, renumbered 0, 1, …, in the order of ``protocol.train_rows``."""
    step: int = 0
    untrained: dict[str, float] | None = None
    """Scores of the test classes before the first step."""
    history: list[dict[str, Any]] = field(default_factory=list)
    best: dict[str, Any] | None = None
    ended: bool = False
    """Whether the method has ended the training before its last step."""
    seconds: float = 0.0
    """Time taken so far, evaluations and checkpoints included."""
    step_seconds: float = 0.0
    """Time taken by training steps alone, waiting for their images included."""
    recent_losses: list[float] = field(default_factory=list)
    loader: TrainingLoader | None = None

    @property
    def table(self) -> ImageTable:
        return self.data.table

    @cached_property
    def weights(self) -> list[nn.Parameter]:
        """The encoder's parameters, listed once: walking the modules of a deep network takes time in every step."""
        return list(self.encoder.parameters())

    @property
    def total_steps(self) -> int:
        training = self.recipe.training
        planned = training.epochs * self.sampler.batches_per_epoch
        return planned if training.max_steps is None else min(planned, training.max_steps)

    @property
    def epoch(self) -> float:
        """Epochs done so far."""
        return self.step / self.sampler.batches_per_epoch

    def embed(self, rows: NDArray[np.int64]) -> Tensor:
        """Embeddings of table rows in evaluation mode, ``[len(rows), dim]`` on the run's device."""
        return embed_images(
            self.encoder,
            self.data.images,
            self.transform,
            rows=rows,
            batch_size=self.recipe.training.evaluation_batch_size,
            workers=self.recipe.data.workers,
            device=self.device,
            dtype=self.dtype,
        )

    def pixels(self, rows: NDArray[np.int64]) -> Tensor:
        """Evaluation crops of table rows, uint8 ``[len(rows), H, W, 3]`` on the run's device."""
        crops = [self.transform.evaluate(self.data.images[row]) for row in rows.tolist()]
        return torch.from_numpy(np.stack(crops)).to(self.device)

    def score(self, part: EvaluationSet, *, final: bool = False) -> dict[str, float]:
        return self.protocol.score(part, self.embed, distance=self.encoder.distance, final=final)

    def image_ids(self, batch: Batch) -> list[str]:
        return [self.table.ids[row] for row in self.protocol.train_rows[batch.rows].tolist()]

    def loader_state(self) -> dict[str, Any]:
        """The sampler's state after the last batch that was used: the loader itself is some batches ahead."""
        return self.sampler.state_dict() if self.loader is None else self.loader.sampler_state


def fit(state: TrainingState, folder: RunFolder, observer: Observer) -> None:
    """Train from where ``state`` is to the end of its recipe, leaving checkpoints in ``folder``.

    Ctrl-C and SIGTERM end the step in hand, write a checkpoint and raise an error that says how to go on.
    """
    training = state.recipe.training
    train_images = _Rows(state.data.images, state.protocol.train_rows)
    began, before = time.monotonic(), state.seconds
    written = time.monotonic()

    if state.step == 0 and not state.history:
        evaluate(state, folder, observer)
        if state.protocol.test is not None and state.untrained is None:
            state.untrained = state.score(state.protocol.test)
        state.method.start(state)
    health = HealthCheck(state)
    with (
        StopRequest() as stop,
        TrainingLoader(
            train_images,
            state.labels,
            state.transform,
            state.sampler,
            seed=training.seed,
            first_batch=state.step,
            workers=state.recipe.data.workers,
            pin_memory=state.device.type == "cuda",
        ) as loader,
    ):
        state.loader = loader
        batches = iter(loader)
        stepping = time.monotonic()
        while state.step < state.total_steps and not state.ended:
            batch = next(batches)
            loss = train_step(state, batch, health)
            state.seconds = before + time.monotonic() - began
            observer.on_step(state, loss, len(batch.rows))
            if state.step % state.sampler.batches_per_epoch == 0:
                _end_epoch(state)
            due = _evaluation_due(state)
            if due or stop.requested or time.monotonic() - written > 60 * training.checkpoint_minutes:
                health.settle()
                state.step_seconds += time.monotonic() - stepping
                if due:
                    state.ended = evaluate(state, folder, observer)
                checkpoint.save_last(state, folder)
                written = stepping = time.monotonic()
            if stop.requested and state.step < state.total_steps and not state.ended:
                raise InterruptedRunError(
                    f"interrupted after step {state.step} of {state.total_steps}; everything is in {folder.path}. "
                    f"Continue with the same command and --resume"
                )
        health.settle()
    checkpoint.save_last(state, folder)


def train_step(state: TrainingState, batch: Batch, health: HealthCheck) -> float:
    """One step of the optimiser; returns the loss (of the step before, on a GPU, so that nothing waits)."""
    if state.step % state.sampler.batches_per_epoch == 0:
        _begin_epoch(state)
    _set_warmup(state)
    # Only evaluations leave training mode, and setting it walks all modules.
    if not state.encoder.training:
        state.encoder.train()
    if not state.objective.training:
        state.objective.train()
    images = batch.images.to(state.device, non_blocking=True)
    labels = batch.labels.to(state.device, non_blocking=True)
    with autocast(state.device, state.dtype):
        embeddings = state.encoder(images)
    try:
        loss = state.method.loss(state, embeddings, labels, batch)
    except ValueError:
        if bool(embeddings.isfinite().all()):
            raise
        health.diverged(batch, f"the embeddings are not finite at step {state.step}")
    state.optimiser.zero_grad(set_to_none=True)
    state.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
    state.scaler.unscale_(state.optimiser)
    state.method.adjust_gradients(state)
    value = health.watch(batch, loss)
    clip_gradients(state.optimiser, state.recipe.training)
    state.scaler.step(state.optimiser)
    state.scaler.update()
    state.step += 1
    state.method.after_step(state)
    return value


def evaluate(state: TrainingState, folder: RunFolder, observer: Observer) -> bool:
    """Score the selection classes, keep the best, write the table; True when the method says to stop."""
    part = state.protocol.selection_set()
    row: dict[str, Any] = {"epoch": round(state.epoch, 4), "step": state.step, "loss": _recent(state)}
    row["lr"] = state.optimiser.param_groups[0]["lr"]
    scores = state.score(part) if part is not None else {}
    if not state.step and part is not None and part is state.protocol.test:
        state.untrained = scores
    row |= scores
    row["seconds"] = round(state.seconds, 3)
    state.history.append(row)
    state.recent_losses.clear()
    selected = scores.get(state.protocol.select_by, math.nan)
    if isinstance(state.scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau) and state.step and scores:
        state.scheduler.step(selected)
    # An untrained network is not a result: only evaluations after the first step compete for the best.
    # A score that is not a number gives way to whatever comes later, and never replaces one that is.
    best = math.nan if state.best is None else state.best.get(state.protocol.select_by, math.nan)
    if state.step and (state.best is None or math.isnan(best) or selected > best):
        state.best = dict(row)
        checkpoint.save_best(state, folder)
    folder.write_evaluations(state.history)
    observer.on_evaluation(state, row)
    return state.method.after_evaluation(state, scores) if state.step else False


class HealthCheck:
    """Finds a loss that is not finite, before the step on a CPU and one step later on an accelerator.

    Reading a value from an accelerator waits for all work queued there, so the values of a step are copied while the
    next one runs, and an event says when they have come: the host stays up to a step ahead, and its own time hides
    behind the accelerator's. No checkpoint is written before the last step has been looked at (:meth:`settle`).
    """

    def __init__(self, state: TrainingState) -> None:
        self.state = state
        self._pending: tuple[int, Batch, list[str], Tensor] | None = None
        self._copied = torch.cuda.Event() if state.device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._latest = math.nan

    def watch(self, batch: Batch, loss: Tensor) -> float:
        norms = gradient_norms(self.state.optimiser)
        loss = at_least_float32(loss.detach())
        values = torch.stack([loss, *(norm.to(loss.dtype) for norm in norms.values())])
        if values.device.type == "cpu":
            self._check(self.state.step, batch, list(norms), values)
            return self._latest
        self.settle()  # before the event is recorded anew
        self._pending = (self.state.step, batch, list(norms), values.to("cpu", non_blocking=True))
        if self._copied is not None:
            self._copied.record(torch.cuda.current_stream(self.state.device))
        return self._latest

    def settle(self) -> None:
        if self._pending is not None:
            if self._copied is not None:
                self._copied.synchronize()
            pending, self._pending = self._pending, None
            self._check(*pending)

    def _check(self, step: int, batch: Batch, names: list[str], values: Tensor) -> None:
        loss, *norms = values.tolist()
        if math.isfinite(loss):
            self._latest = loss
            self.state.recent_losses.append(loss)
            return
        listing = ", ".join(f"{name} {norm:.3g}" for name, norm in zip(names, norms, strict=True)) or "none"
        self.diverged(batch, f"the loss became {loss} at step {step}. Gradient norms: {listing}")

    def diverged(self, batch: Batch, what: str) -> NoReturn:
        ids = self.state.image_ids(batch)
        shown = ", ".join(ids[:8]) + (f", … ({len(ids)} in all)" if len(ids) > 8 else "")
        raise TrainingError(
            f"{what}. Images of the batch: {shown}. "
            f"The last good checkpoint is untouched. A smaller training.learning_rate, training.clip=norm or "
            f"training.precision=float32 usually helps."
        )


class _Rows:
    """The training rows of the opened images, counted from 0."""

    def __init__(self, images: Any, rows: NDArray[np.int64]) -> None:
        self.images = images
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> NDArray[np.uint8]:
        image: NDArray[np.uint8] = self.images[int(self.rows[row])]
        return image


def _begin_epoch(state: TrainingState) -> None:
    hook = getattr(state.objective, "begin_epoch", None)
    if hook is not None:
        hook(state.step // state.sampler.batches_per_epoch)


def _end_epoch(state: TrainingState) -> None:
    if not isinstance(state.scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
        state.scheduler.step()


def _set_warmup(state: TrainingState) -> None:
    """During warm-up the backbone's parameters take no gradient; its optimiser group then skips them."""
    training = state.recipe.training
    trains = state.step >= training.warmup_epochs * state.sampler.batches_per_epoch
    for group in state.optimiser.param_groups:
        if group["name"] == "backbone" and group["params"][0].requires_grad != trains:
            for parameter in group["params"]:
                parameter.requires_grad_(trains)


def _evaluation_due(state: TrainingState) -> bool:
    training = state.recipe.training
    if state.step == state.total_steps:
        return True
    if training.evaluate_every_steps is not None:
        return state.step % training.evaluate_every_steps == 0
    return state.step % (training.evaluate_every * state.sampler.batches_per_epoch) == 0


def _recent(state: TrainingState) -> float | None:
    losses = state.recent_losses
    return round(math.fsum(losses) / len(losses), 6) if losses else None
