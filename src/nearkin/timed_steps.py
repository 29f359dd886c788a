"""What a run will take here, from a few of its training steps and a piece of an evaluation, timed."""

from __future__ import annotations

import dataclasses
import math
import time
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from nearkin.data.cache import Images, OpenedImages, open_images
from nearkin.data.loader import TrainingLoader
from nearkin.data.source import read_source
from nearkin.data.table import ImageTable
from nearkin.evaluation.protocol import EvaluationSet
from nearkin.evaluation.retrieval import retrieval_scores
from nearkin.recipe import DataSection, PartSection, Recipe
from nearkin.run import build_state
from nearkin.samplers import BalancedSampler, RandomSampler
from nearkin.training import HealthCheck, TrainingState, train_step

STEPS = 2
FEW = 8
"""Images to begin with: a batch of a large network on a CPU takes longer than anyone would wait for an estimate."""
LONG_ENOUGH = 0.5
"""Seconds after which a time is counted up to all images; a shorter one is mostly that of the calls themselves."""
_RANKED = 2000


def run_seconds(recipe: Recipe) -> float:
    """Seconds that a run of ``recipe`` will roughly take on this machine; finding out takes a few.

    The steps are real ones, of the recipe's encoder and loss in plain training, on noise of the images' size: nothing
    is decoded, and nothing is written. What a method does between the steps is not in it, nor is reading the images.
    """
    table = read_source(recipe.data.source, root=recipe.data.root, kinds=recipe.data.kinds)
    state = build_state(_plainly(recipe), OpenedImages(table, _stand_ins(table, recipe.data)))
    try:
        step = _step_seconds(state)
        chosen_on, test = state.protocol.selection_set(), state.protocol.test
        # Once before the first step, then as often as the recipe says; the test classes before training and at the end.
        total = state.total_steps * step + (1 + _evaluations(state)) * _evaluation_seconds(state, chosen_on)
        return total + (1 if test is chosen_on else 2) * _evaluation_seconds(state, test)
    finally:
        del state
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


@dataclass(frozen=True)
class _Noise:
    """One image that stands for all."""

    count: int
    pixels: NDArray[np.uint8]

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, row: int, /) -> NDArray[np.uint8]:
        return self.pixels


def _stand_ins(table: ImageTable, section: DataSection) -> Images:
    if isinstance(table.images, np.ndarray):
        return open_images(table, cache_dir=None).images
    side = section.shorter_side
    pixels = np.random.default_rng(0).integers(0, 256, (side, 4 * side // 3, 3), dtype=np.uint8)
    return _Noise(len(table), pixels)


def _plainly(recipe: Recipe) -> Recipe:
    """Without the method, whose start can take long, and without the warm-up, whose steps are cheaper than the rest."""
    training = dataclasses.replace(recipe.training, warmup_epochs=0)
    return recipe.replace(method=PartSection("plain"), training=training)


def _step_seconds(state: TrainingState) -> float:
    """Batches grow to the recipe's size, or until a step is long enough to be counted up."""
    whole = _sampler(state, state.recipe.training.batch_size)
    size = FEW if state.device.type == "cpu" else whole.batch_size
    _timed(state, _sampler(state, size), 1)  # the first step also makes everything ready
    while True:
        sampler = _sampler(state, min(size, state.recipe.training.batch_size))
        seconds = _timed(state, sampler, STEPS)
        if sampler.batch_size >= whole.batch_size or seconds > LONG_ENOUGH:
            return seconds * whole.batch_size / sampler.batch_size
        size *= 4


def _timed(state: TrainingState, sampler: RandomSampler | BalancedSampler, steps: int) -> float:
    """Seconds of a step, the loader's work included: the shortest, as other work only makes one longer."""
    health = HealthCheck(state)
    loader = TrainingLoader(
        state.data.images,
        state.labels,
        state.transform,
        sampler,
        seed=0,
        workers=state.recipe.data.workers,
        pin_memory=state.device.type == "cuda",
    )
    with loader:
        batches = iter(loader)
        seconds = []
        for _ in range(steps):
            began = time.monotonic()
            train_step(state, next(batches), health)
            health.settle()
            seconds.append(time.monotonic() - began)
    return min(seconds)


def _sampler(state: TrainingState, batch_size: int) -> RandomSampler | BalancedSampler:
    training = state.recipe.training
    if training.sampler == "random":
        return RandomSampler(len(state.labels), batch_size=batch_size, seed=0)
    group = training.images_per_class
    size = group * max(2, batch_size // group)
    return BalancedSampler(state.labels, batch_size=size, images_per_class=group, seed=0)


def _evaluations(state: TrainingState) -> int:
    training = state.recipe.training
    every = training.evaluate_every_steps or training.evaluate_every * state.sampler.batches_per_epoch
    return math.ceil(state.total_steps / every)


def _evaluation_seconds(state: TrainingState, part: EvaluationSet | None) -> float:
    """Embedding counts up by the image, ranking by the pair of images."""
    if part is None:
        return 0.0
    count = len(part.rows)
    ranked = min(count, _RANKED)
    vectors = torch.randn(ranked, state.encoder.dim, device=state.device)
    began = time.monotonic()
    retrieval_scores(vectors, torch.arange(ranked) // 2)
    ranking = (time.monotonic() - began) * (count / ranked) ** 2
    size = FEW
    while True:
        some = part.rows[:size]
        began = time.monotonic()
        state.embed(some).cpu()
        seconds = time.monotonic() - began
        if len(some) == count or seconds > LONG_ENOUGH:
            return ranking + seconds * count / len(some)
        size *= 4
