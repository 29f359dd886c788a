"""The state of a run, which the loop, its methods, observers and checkpoints share."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from nearkin import ranks
from nearkin.data.cache import OpenedImages, SelectedImages
from nearkin.data.device_images import DeviceImages
from nearkin.data.loader import Batch, CropCache, TrainingLoader, crop_batches
from nearkin.data.table import ImageTable
from nearkin.data.transforms import Transform
from nearkin.encoders import Encoder
from nearkin.encoders.synchronised import is_synchronised
from nearkin.errors import RecipeError
from nearkin.evaluation.protocol import EvaluationSet, Protocol
from nearkin.recipe import Recipe
from nearkin.samplers import BatchSampler
from nearkin.training.collapse import Collapse, find_collapse
from nearkin.training.device import GraphedEncoder
from nearkin.training.embedding import embed_images, images_at_a_time
from nearkin.training.optimisation import Scheduler, WeightEma

EVALUATING = "evaluating"
Evaluation = dict[str, float]
"""A row of ``evaluations.csv``: epoch, step, loss, learning rate, seconds, and the scores by their names."""
Event = dict[str, Any]
"""Something that a method did: its ``step``, its ``kind``, and more."""


class RunTime:
    """Seconds of a run by activity, over all sittings; ``steps`` includes waiting for images."""

    def __init__(self) -> None:
        self.by = {"steps": 0.0, "evaluations": 0.0, "checkpoints": 0.0}
        self._before = 0.0
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds of all sittings, including preparation."""
        return self._before + time.monotonic() - self._began

    @contextmanager
    def on(self, part: str) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            self.by[part] += time.monotonic() - began

    def state_dict(self) -> dict[str, float]:
        return {"all": self.seconds, **self.by}

    def load_state_dict(self, saved: Mapping[str, float]) -> None:
        self._before = saved["all"]
        self.by = {part: saved[part] for part in self.by}


@dataclass
class TrainingState:
    """Everything that methods may read and that checkpoints store."""

    recipe: Recipe
    data: OpenedImages
    protocol: Protocol
    transform: Transform
    eval_transform: Transform
    """Makes the crops that are scored; methods embed training images by ``transform``."""
    encoder: Encoder
    objective: nn.Module
    method: Method
    optimiser: torch.optim.Optimizer
    scheduler: Scheduler
    scaler: torch.amp.GradScaler
    device: torch.device
    dtype: torch.dtype | None
    sampler: BatchSampler
    labels: NDArray[np.int64]
    """Labels of the training images, renumbered 0, 1, …, in the order of ``train_set``."""
    add_l2_sp: Callable[[], None]
    """Adds the gradient of L2-SP, the proximal term around the initial weights, if the recipe has it."""
    learned: nn.Module | None = None
    """Parameters of the method."""
    ema: WeightEma | None = None
    """The average of the encoder's weights."""
    micro_batch: int | None = None
    """Images in the network at a time; None for the whole batch."""
    step: int = 0
    untrained: dict[str, float] | None = None
    """The baseline's scores of the test classes, before the first step."""
    history: list[Evaluation] = field(default_factory=list)
    best: Evaluation | None = None
    ended: bool = False
    """Whether training has ended before its last step."""
    time: RunTime = field(default_factory=RunTime)
    recent_losses: list[float] = field(default_factory=list)
    """Losses since the last evaluation; the row of the next one has their mean."""
    batch_embeddings: Tensor | None = None
    """Embeddings of the last step; an evaluation's row has their ``spread``."""
    loader: TrainingLoader | None = None
    on_scoring: Callable[[str, int, int], None] = lambda what, done, total: None
    """:meth:`Observer.on_scoring` of the loop's observer."""
    on_device: DeviceImages | None = None
    """The training images on the device, where they fit."""
    crop_cache: CropCache | None = None
    room_for_graphs: bool = False
    """Whether a step's feature maps fit on the device twice."""

    @property
    def table(self) -> ImageTable:
        return self.data.table

    @cached_property
    def weights(self) -> list[nn.Parameter]:
        """The encoder's parameters, listed once: walking the modules of a deep network takes time in every step."""
        return list(self.encoder.parameters())

    @property
    def eval_encoder(self) -> Encoder:
        """The encoder that is evaluated and saved: the average of the weights, or else the trained one."""
        return self.encoder if self.ema is None else self.ema.encoder

    def pieces(self, images: Tensor) -> Sequence[Tensor]:
        """A batch in pieces of :attr:`micro_batch` images, or as one piece."""
        return torch.split(images, self.micro_batch or len(images))

    @cached_property
    def encode(self) -> Encoder | GraphedEncoder:
        """The encoder for a training batch, by CUDA graphs where ``training.cuda_graphs`` says so."""
        choice = self.recipe.training.cuda_graphs
        # Other libraries' networks may draw random numbers outside of torch, which a graph would repeat.
        suitable = self.room_for_graphs and ":" not in self.recipe.encoder.backbone
        # A graph cannot contain communication between ranks.
        graphs = (choice == "always" or (choice == "auto" and suitable)) and not is_synchronised(self.encoder)
        return GraphedEncoder(self.encoder, self.device, self.dtype) if graphs else self.encoder

    @property
    def planned_steps(self) -> int:
        """Steps of the whole run, of which ``training.stop_at_epoch`` may take only the first."""
        training = self.recipe.training
        planned = training.epochs * self.sampler.batches_per_epoch
        return planned if training.max_steps is None else min(planned, training.max_steps)

    @property
    def total_steps(self) -> int:
        training = self.recipe.training
        if training.stop_at_epoch is None:
            return self.planned_steps
        return min(self.planned_steps, max(1, round(training.stop_at_epoch * self.sampler.batches_per_epoch)))

    @property
    def epoch(self) -> float:
        return self.step / self.sampler.batches_per_epoch

    @property
    def warmup_steps(self) -> int:
        return self.recipe.training.warmup_epochs * self.sampler.batches_per_epoch

    @property
    def evaluation_interval(self) -> int:
        training = self.recipe.training
        return training.evaluate_every_steps or training.evaluate_every * self.sampler.batches_per_epoch

    @property
    def eval_batch_size(self) -> int:
        return self.recipe.training.evaluation_batch_size or images_at_a_time(self.eval_transform.size, self.device)

    def embed(
        self,
        rows: NDArray[np.int64],
        *,
        encoder: Encoder | None = None,
        as_scored: bool = False,
        what: str | None = None,
        crops: Callable[[range], Iterable[Tensor]] | None = None,
    ) -> Tensor:
        """Embeddings of table rows in evaluation mode, ``[len(rows), dim]`` on the run's device, on every rank.

        ``as_scored`` takes the crops and, if set, the mirror images of the protocol. ``what`` is shown by the observer.
        For ``crops`` see :func:`~nearkin.training.embedding.embed_images`.
        """

        def show(done: int) -> None:
            if what is not None:
                self.on_scoring(what, done, len(rows))

        show(0)
        return embed_images(
            encoder or self.encoder,
            self.data.images,
            self.eval_transform if as_scored else self.transform,
            rows=rows,
            batch_size=self.eval_batch_size,
            workers=self.recipe.data.workers,
            device=self.device,
            dtype=self.dtype,
            progress=show,
            crops=crops,
            flip=as_scored and self.recipe.protocol.flip,
            together=True,
        )

    def score(self, part: EvaluationSet, *, final: bool = False, baseline: bool = False) -> dict[str, float]:
        """Scores of the encoder; the ``baseline`` is the encoder without its head, which begins at random."""
        encoder = self.eval_encoder.without_head() if baseline else self.eval_encoder
        what = EVALUATING
        if baseline or final:
            of = "validation" if part is self.protocol.validation else "test"
            what = f"scoring {'the untrained backbone on ' if baseline else ''}the {of} classes"

        def embed(rows: NDArray[np.int64]) -> Tensor:
            kept, size = self.crop_cache, self.eval_batch_size
            crops = None if kept is None else lambda part: kept.batches(rows[part.start : part.stop], batch_size=size)
            return self.embed(rows, encoder=encoder, as_scored=True, what=what, crops=crops)

        with self.time.on("evaluations"):
            # Rounding may differ between ranks, so all use the scores of the first.
            scores = self.protocol.score(part, embed, distance=encoder.distance, final=final)
            return ranks.from_first(lambda: scores)

    @property
    def collapse(self) -> Collapse | None:
        """The collapse that the evaluations so far show, if any."""
        part = self.protocol.selection_set()
        return find_collapse(self.history, 1 if part is None else len(part.query), self.recipe)

    def is_below_baseline(self, row: Evaluation) -> bool:
        """Whether an evaluation's selection score is below that of the untrained backbone."""
        first = self.history[0] if self.history and not self.history[0]["step"] else {}
        name = self.protocol.select_by
        return row.get(name, math.nan) < first.get(name, math.nan)

    @cached_property
    def train_set(self) -> TrainingSet:
        return TrainingSet(self)


class TrainingSet:
    """The training images, numbered from 0 as samplers, batches and methods number them."""

    def __init__(self, state: TrainingState) -> None:
        self._state = state
        self._rows = state.protocol.train_rows
        self.selected = SelectedImages(state.data.images, self._rows)
        """The images alone, which can be sent to another process."""

    def __len__(self) -> int:
        return len(self.selected)

    def __getitem__(self, row: int, /) -> NDArray[np.uint8]:
        return self.selected[row]

    def ids(self, rows: NDArray[np.int64]) -> list[str]:
        return [self._state.table.ids[row] for row in self._rows[rows].tolist()]

    def embed(
        self,
        rows: NDArray[np.int64],
        *,
        encoder: Encoder | None = None,
        augmented: Callable[[int], np.random.Generator] | None = None,
        what: str | None = None,
    ) -> Tensor:
        """Embeddings in evaluation mode, ``[len(rows), dim]`` on the run's device.

        Crops are those for evaluation. With ``augmented``, which gives the random generator for an index of ``rows``,
        they are training crops.
        """
        state, size, transform = self._state, self._state.eval_batch_size, self._state.transform
        placed = state.on_device
        if augmented is not None:

            def training_crop(index: int) -> NDArray[np.uint8]:
                return transform.train(self[int(rows[index])], augmented(index))

            crops: Callable[[range], Iterable[Tensor]] | None = partial(
                crop_batches, training_crop, batch_size=size, workers=state.recipe.data.workers
            )
        else:
            crops = (
                None
                if placed is None
                else lambda part: placed.evaluation_batches(rows[part.start : part.stop], transform, batch_size=size)
            )
        return state.embed(self._rows[rows], encoder=encoder, what=what, crops=crops)

    def pixels(self, rows: NDArray[np.int64]) -> Tensor:
        """Evaluation crops, uint8 ``[len(rows), H, W, 3]`` on the run's device."""
        state = self._state
        if state.on_device is not None:
            return state.on_device.evaluation_crops(rows, state.transform)
        crops = np.stack([state.transform.evaluate(self[row]) for row in rows.tolist()])
        return torch.from_numpy(crops).to(state.device)


class Method:
    """The hooks of the training loop, each as in plain training; a method overrides those that it changes.

    They are called in this order: :meth:`check` before any work, :meth:`build` and :meth:`sampler` while the run is
    built, :meth:`start` before the very first step, and then for every step :meth:`loss`, :meth:`adjust_gradients`
    (after backward, before clipping) and :meth:`after_step`. After each evaluation comes :meth:`after_evaluation`. A
    method's own state goes through :meth:`state_dict`, so that a resumed run continues where it was.

    >>> Method().state_dict()
    {}
    """

    early_stop_patience: int | None = None
    """Evaluations without a new best that end the run, unless ``training.early_stop_patience`` is set."""
    events: Sequence[Event] = ()
    """What the method did and when; written to the run folder as ``events.json``."""

    @classmethod
    def check(cls, recipe: Recipe) -> None:
        """Refuse a recipe that this method cannot follow; by default, only options that are out of range."""
        try:
            cls(**recipe.method.options)
        except ValueError as error:
            raise RecipeError(f"method.{error}") from error

    def build(self, *, num_classes: int, dim: int, objective: nn.Module) -> nn.Module | None:
        """The method's own parameters; those in proxy banks are trained at the proxies' rate."""
        return None

    def sampler(self, default: BatchSampler, state: TrainingState) -> BatchSampler:
        """The sampler to train with; ``default`` is that of the recipe's ``training.sampler``."""
        return default

    def start(self, state: TrainingState) -> None:
        """Before the first step of a new run, not of a resumed one."""

    def loss(self, state: TrainingState, embeddings: Tensor, labels: Tensor, batch: Batch) -> Tensor:
        """The loss of one batch; ``labels`` are on the embeddings' device."""
        value: Tensor = state.objective(embeddings, labels)
        return value

    def adjust_gradients(self, state: TrainingState) -> None:
        """Between backward and the optimiser's step."""

    def after_step(self, state: TrainingState) -> None:
        """After the optimiser's step; ``state.step`` already counts it."""

    def after_evaluation(self, state: TrainingState, scores: dict[str, float]) -> bool:
        """After an evaluation on the selection classes; True ends the training."""
        return False

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned."""


class Observer:
    """Follows a run, as a progress bar does; each method does nothing unless overridden."""

    def on_start(self, state: TrainingState) -> None:
        """Before the first step of a run, or of the continuation of one."""

    def on_step(self, state: TrainingState, loss: float, images: int) -> None:
        """After a step on this number of ``images``."""

    def on_evaluation(self, state: TrainingState, row: Evaluation) -> None:
        """After an evaluation, a ``row`` of ``evaluations.csv``."""

    def on_test(self, state: TrainingState, scores: Mapping[str, float]) -> None:
        """After the final scores on the test classes."""

    def close(self, *, failed: bool) -> None:
        """When the run has ended; ``failed`` is also true where it was interrupted."""

    def on_scoring(self, what: str, done: int, total: int) -> None:
        """While images are embedded: what for, how many are ``done``, and their ``total``."""
