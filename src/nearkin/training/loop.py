"""The one training loop: batches → encoder → objective → backward → step.

The loop never asks which method or loss it runs; what a method changes goes through its hooks
(:class:`nearkin.methods.plain.Plain`), and what a run needs to go on after an interruption is in
:class:`TrainingState`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from nearkin import methods
from nearkin.data.cache import OpenedImages
from nearkin.data.loader import Batch, TrainingLoader
from nearkin.data.table import ImageTable
from nearkin.data.transforms import Transform
from nearkin.encoders import Encoder
from nearkin.errors import InterruptedRunError
from nearkin.evaluation.protocol import EvaluationSet
from nearkin.evaluation.protocol import Protocol as EvaluationProtocol
from nearkin.recipe import Recipe
from nearkin.runs.folder import RunFolder
from nearkin.samplers import BatchSampler
from nearkin.training import checkpoint
from nearkin.training.device import autocast
from nearkin.training.embedding import embed_images
from nearkin.training.health import HealthCheck
from nearkin.training.interrupt import StopRequest
from nearkin.training.optimisation import Scheduler, clip_gradients
from nearkin.training.time_estimate import RunTime

EVALUATING = "evaluating"
Watch = Callable[[str, int, int], None]
"""Is told what is being scored, how many of its images are embedded, and how many there are."""


class Observer(Protocol):
    """Who is told how a run goes: a progress bar, TensorBoard, a test.

    One that also has ``on_scoring(what, done, total)`` is told how the scoring of images gets on.
    """

    def on_step(self, state: TrainingState, loss: float, images: int) -> None: ...

    def on_evaluation(self, state: TrainingState, row: dict[str, Any]) -> None: ...


class Silent:
    """An observer that tells nobody."""

    def on_step(self, state: TrainingState, loss: float, images: int) -> None:
        """Nothing."""

    def on_evaluation(self, state: TrainingState, row: dict[str, Any]) -> None:
        """Nothing."""


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
    """Labels of the training images, renumbered 0, 1, …, in the order of :attr:`train_set`."""
    step: int = 0
    untrained: dict[str, float] | None = None
    """Scores of the test classes before the first step, by the baseline."""
    baseline: Literal["backbone", "random head"] = "backbone"
    """What the untrained scores are of. Runs begun by early versions scored the backbone behind a random head."""
    history: list[dict[str, Any]] = field(default_factory=list)
    best: dict[str, Any] | None = None
    ended: bool = False
    """Whether the method has ended the training before its last step."""
    time: RunTime = field(default_factory=RunTime)
    recent_losses: list[float] = field(default_factory=list)
    loader: TrainingLoader | None = None
    watch: Watch | None = None

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
        if training.stop_at_epoch is not None:
            planned = min(planned, max(1, round(training.stop_at_epoch * self.sampler.batches_per_epoch)))
        return planned if training.max_steps is None else min(planned, training.max_steps)

    @property
    def epoch(self) -> float:
        """Epochs done so far."""
        return self.step / self.sampler.batches_per_epoch

    @property
    def warmup_steps(self) -> int:
        return self.recipe.training.warmup_epochs * self.sampler.batches_per_epoch

    @property
    def evaluation_interval(self) -> int:
        """Steps between evaluations."""
        training = self.recipe.training
        return training.evaluate_every_steps or training.evaluate_every * self.sampler.batches_per_epoch

    @property
    def evaluations_left(self) -> int:
        """Evaluations still to come, the one that is due after the step in hand among them."""
        every = self.evaluation_interval
        return -(-self.total_steps // every) - (self.step - 1) // every

    def embed(
        self, rows: NDArray[np.int64], *, encoder: Encoder | None = None, progress: Callable[[int], None] | None = None
    ) -> Tensor:
        """Embeddings of table rows in evaluation mode, ``[len(rows), dim]`` on the run's device."""
        return embed_images(
            encoder or self.encoder,
            self.data.images,
            self.transform,
            rows=rows,
            batch_size=self.recipe.training.evaluation_batch_size,
            workers=self.recipe.data.workers,
            device=self.device,
            dtype=self.dtype,
            progress=progress,
        )

    def score(self, part: EvaluationSet, *, final: bool = False, baseline: bool = False) -> dict[str, float]:
        """Scores of the encoder, or as the baseline of its backbone without the head, which begins as random numbers.

        A random projection loses some of what the backbone knows, and would make training look better than it is.
        """
        encoder = self.encoder.without_head() if baseline else self.encoder
        what = EVALUATING
        if baseline or final:
            of = "validation" if part is self.protocol.validation else "test"
            what = f"scoring {'the untrained backbone on ' if baseline else ''}the {of} classes"

        def embed(rows: NDArray[np.int64]) -> Tensor:
            watch, total = self.watch, len(rows)
            if watch is None:
                return self.embed(rows, encoder=encoder)
            watch(what, 0, total)
            return self.embed(rows, encoder=encoder, progress=lambda done: watch(what, done, total))

        with self.time.on("evaluations"):
            scores = self.protocol.score(part, embed, distance=encoder.distance, final=final)
        self.time.images_scored += len(part.rows)
        return scores

    def is_below_baseline(self, row: Mapping[str, Any]) -> bool:
        """Whether an evaluation's score, the one that chooses the epoch, is below that of the untrained backbone."""
        first = self.history[0] if self.history and not self.history[0]["step"] else {}
        name = self.protocol.select_by
        return self.baseline == "backbone" and row.get(name, math.nan) < first.get(name, math.nan)

    @cached_property
    def train_set(self) -> TrainingSet:
        return TrainingSet(self)

    def loader_state(self) -> dict[str, Any]:
        """The sampler's state after the last batch that was used: the loader itself is some batches ahead."""
        return self.sampler.state_dict() if self.loader is None else self.loader.sampler_state


class TrainingSet:
    """The images that train, counted from 0: the numbering that samplers, batches and methods share.

    Where they stand in the table of all images is known here and to the protocol alone.
    """

    def __init__(self, state: TrainingState) -> None:
        self._state = state
        self._rows = state.protocol.train_rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, row: int, /) -> NDArray[np.uint8]:
        return self._state.data.images[int(self._rows[row])]

    def ids(self, rows: NDArray[np.int64]) -> list[str]:
        """What the images are called."""
        return [self._state.table.ids[row] for row in self._rows[rows].tolist()]

    def embed(self, rows: NDArray[np.int64]) -> Tensor:
        """Embeddings in evaluation mode, ``[len(rows), dim]`` on the run's device."""
        return self._state.embed(self._rows[rows])

    def pixels(self, rows: NDArray[np.int64]) -> Tensor:
        """Evaluation crops, uint8 ``[len(rows), H, W, 3]`` on the run's device."""
        crops = [self._state.transform.evaluate(self[row]) for row in rows.tolist()]
        return torch.from_numpy(np.stack(crops)).to(self._state.device)


def fit(state: TrainingState, folder: RunFolder, observer: Observer) -> None:
    """Train from where ``state`` is to the end of its recipe, leaving checkpoints in ``folder``.

    Ctrl-C and SIGTERM end the step in hand, write a checkpoint and raise an error that says how to go on.
    """
    training = state.recipe.training
    written = time.monotonic()
    state.time.begin()
    state.watch = getattr(observer, "on_scoring", None)

    if state.step == 0 and not state.history:
        evaluate(state, folder, observer)
        if state.protocol.test is not None and state.untrained is None:
            state.untrained = state.score(state.protocol.test, baseline=True)
        state.method.start(state)
    health = HealthCheck(state)
    with (
        StopRequest() as stop,
        TrainingLoader(
            state.train_set,
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
        while state.step < state.total_steps and not state.ended:
            with state.time.on("steps"):
                batch = next(batches)
                loss = train_step(state, batch, health)
            observer.on_step(state, loss, len(batch.rows))
            if state.step % state.sampler.batches_per_epoch == 0:
                _end_epoch(state)
            due = _evaluation_due(state)
            if due or stop.requested or time.monotonic() - written > 60 * training.checkpoint_minutes:
                with state.time.on("steps"):
                    health.settle()
                if due:
                    state.ended = evaluate(state, folder, observer)
                with state.time.on("checkpoints"):
                    checkpoint.save_last(state, folder)
                written = time.monotonic()
            if stop.requested and state.step < state.total_steps and not state.ended:
                raise InterruptedRunError(
                    f"interrupted after step {state.step} of {state.total_steps}; everything is in {folder.path}. "
                    f"Continue with the same command and --resume"
                )
        health.settle()
    with state.time.on("checkpoints"):
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
    scores = state.score(part, baseline=not state.step) if part is not None else {}
    if not state.step and part is not None and part is state.protocol.test:
        state.untrained = scores
    row |= scores
    row["seconds"] = round(state.time.seconds, 3)
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
        with state.time.on("checkpoints"):
            checkpoint.save_best(state, folder)
    folder.write_evaluations(state.history)
    observer.on_evaluation(state, row)
    return state.method.after_evaluation(state, scores) if state.step else False


def _begin_epoch(state: TrainingState) -> None:
    hook = getattr(state.objective, "begin_epoch", None)
    if hook is not None:
        hook(state.step // state.sampler.batches_per_epoch)


def _end_epoch(state: TrainingState) -> None:
    if not isinstance(state.scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
        state.scheduler.step()


def _set_warmup(state: TrainingState) -> None:
    """During warm-up the backbone's parameters take no gradient; its optimiser group then skips them."""
    trains = state.step >= state.warmup_steps
    for group in state.optimiser.param_groups:
        if group["name"] == "backbone" and group["params"][0].requires_grad != trains:
            for parameter in group["params"]:
                parameter.requires_grad_(trains)


def _evaluation_due(state: TrainingState) -> bool:
    return state.step == state.total_steps or state.step % state.evaluation_interval == 0


def _recent(state: TrainingState) -> float | None:
    losses = state.recent_losses
    return round(math.fsum(losses) / len(losses), 6) if losses else None
