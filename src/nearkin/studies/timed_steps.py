"""What a run will take here, from a few of its training steps and a piece of an evaluation, timed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
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
from nearkin.samplers import BalancedSampler, RandomSampler
from nearkin.training.build import build_state
from nearkin.training.health import HealthCheck
from nearkin.training.loop import train_step
from nearkin.training.state import TrainingState

STEPS = 2
FEW = 2
"""Images to begin with: a batch of a large network on a CPU takes longer than anyone would wait for an estimate."""
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
        evaluations = 1 + math.ceil(state.total_steps / state.evaluation_interval)
        total = state.total_steps * step + evaluations * _evaluation_seconds(state, chosen_on)
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
    return recipe.but({"training.warmup_epochs": 0}).replace(method=PartSection("plain"))


def counted_up(seconds_of: Callable[[int], float], whole: int, *, begin: int = FEW, patience: float = 4.0) -> float:
    """Seconds for ``whole`` images from those for fewer, four times as many each time for some seconds.

    Beyond, the time goes on in a straight line through the last two: some of it is the calls' own, whatever the number.

    >>> counted_up(lambda images: 1.0 + images, 4), counted_up(lambda images: 1.0 + images, 1000)
    (5.0, 1001.0)
    """
    before, spent = (0, 0.0), 0.0
    while True:
        images = min(begin, whole)
        began = time.monotonic()
        seconds = seconds_of(images)
        spent += max(seconds, time.monotonic() - began)
        if images == whole:
            return seconds
        # As long as more images take no longer, the time is not theirs, and four times as many will not cost much.
        if before[0] and spent > patience and seconds > before[1]:
            return seconds + (whole - images) * (seconds - before[1]) / (images - before[0])
        before, begin = (images, seconds), 4 * begin


def _step_seconds(state: TrainingState) -> float:
    whole = _sampler(state, state.recipe.training.batch_size).batch_size
    group = 1 if state.recipe.training.sampler == "random" else state.recipe.training.images_per_class
    begin = max(FEW, 2 * group) if state.device.type == "cpu" else whole
    _timed(state, min(begin, whole), 1)  # the first step also makes everything ready
    return counted_up(lambda images: _timed(state, images, STEPS), whole, begin=begin)


def _timed(state: TrainingState, batch_size: int, steps: int) -> float:
    """Seconds of a step with so many images and the loader's work: of the shortest, as other load only adds to them."""
    health, seconds = HealthCheck(state), []
    with TrainingLoader(
        state.data.images,
        state.labels,
        state.transform,
        _sampler(state, batch_size),
        seed=0,
        workers=state.recipe.data.workers,
        pin_memory=state.device.type == "cuda",
    ) as loader:
        batches = iter(loader)
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


def _evaluation_seconds(state: TrainingState, part: EvaluationSet | None) -> float:
    """Embedding counts up by the image, ranking by the pair of images."""
    if part is None:
        return 0.0
    rows = part.rows
    ranked = min(len(rows), _RANKED)
    vectors = torch.randn(ranked, state.encoder.dim, device=state.device)
    began = time.monotonic()
    retrieval_scores(vectors, torch.arange(ranked) // 2)
    ranking = (time.monotonic() - began) * (len(rows) / ranked) ** 2

    def embedding(images: int) -> float:
        began = time.monotonic()
        state.embed(rows[:images]).cpu()
        return time.monotonic() - began

    return ranking + counted_up(embedding, len(rows), patience=1.0)
