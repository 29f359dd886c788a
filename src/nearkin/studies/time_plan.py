"""How long a study will take, said before it begins: from its finished runs, or else from a few timed steps."""

from __future__ import annotations

import math
import re
import statistics
import time
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from nearkin.data.cache import Images, OpenedImages, open_images
from nearkin.data.loader import TrainingLoader
from nearkin.data.source import read_source
from nearkin.data.table import ImageTable
from nearkin.errors import NearkinError
from nearkin.evaluation.protocol import EvaluationSet
from nearkin.evaluation.retrieval import retrieval_scores
from nearkin.recipe import DataSection, PartSection, Recipe
from nearkin.report.formats import counted
from nearkin.samplers import BalancedSampler, RandomSampler
from nearkin.studies.pool import share_done
from nearkin.studies.study import PlannedRun
from nearkin.training.build import build_state, data_of
from nearkin.training.device import describe_hardware, float32_products, pick_device
from nearkin.training.health import HealthCheck
from nearkin.training.state import TrainingState
from nearkin.training.step import train_step
from nearkin.training.time_estimate import in_words

ASK_BEYOND = 15 * 60
"""Seconds; whoever starts more than this without having been told would not expect it."""
STEPS = 2
FEW = 2
"""Images to begin with: a batch of a large network on a CPU takes longer than anyone would wait for an estimate."""
_RANKED = 2000


@dataclass(frozen=True)
class TimePlan:
    """How many runs there are, and how long those that are left will roughly take."""

    runs: int
    finished: int
    seconds: float | None
    """None where it could not be estimated, for instance because the data are missing."""
    how: str
    """How the time was estimated, or why it was not."""

    @property
    def is_long(self) -> bool:
        return self.seconds is not None and self.seconds > ASK_BEYOND

    @property
    def text(self) -> str:
        """The time in words, with what it rests on."""
        if self.finished == self.runs:
            return "nothing is left to run"
        return f"unknown: {self.how}" if self.seconds is None else f"about {in_words(self.seconds)}, {self.how}"


def plan_time(
    runs: Sequence[PlannedRun],
    *,
    jobs: int = 1,
    anew: Collection[Path] = (),
    measure: Callable[[Recipe], float] | None = None,
) -> TimePlan:
    """The time that the unfinished of ``runs`` will take, ``jobs`` at a time.

    Runs with the data and the budget of finished ones take as long as those did, a row's own before others'. Without
    any, one run stands for all with its data and budget, and is measured, by :func:`run_seconds` if nothing else is
    given. The time is divided by ``jobs`` as if they did not slow each other down; runs in the folders ``anew`` will be
    begun anew, whatever they hold.
    """
    waiting = [run for run in runs if run.folder.path in anew or not run.folder.is_finished]
    done = [run for run in runs if run not in waiting]
    total, timed, finished, problem = 0.0, [], 0, ""
    for budget in dict.fromkeys(_budget(run.recipe) for run in waiting):
        mine = [run for run in waiting if _budget(run.recipe) == budget]
        took = [(_method(run.recipe), _seconds(run, jobs)) for run in done if _budget(run.recipe) == budget]
        known = [(method, seconds) for method, seconds in took if seconds is not None]
        finished += len(known)
        fixed = 0.0
        if not known:
            # Proxy losses and plain training first: their steps are the same in all rows, methods add to them.
            chosen = min(mine, key=lambda run: run.recipe.method.name != "plain")
            try:
                fixed = (measure or run_seconds)(chosen.recipe) / jobs
            except (NearkinError, ValueError, RuntimeError) as error:
                problem = str(error).splitlines()[0]
                continue
            timed.append(chosen.recipe.objective.name)
        for run in mine:
            alike = [seconds for method, seconds in known if method == _method(run.recipe)]
            left = 1.0 if run.folder.path in anew else 1.0 - _share_done(run)
            total += left * (statistics.fmean(alike or [seconds for _, seconds in known]) if known else fixed)
    sources = [counted(finished, "finished run")] if finished else []
    sources += [f"a few timed steps of {' and of '.join(dict.fromkeys(timed))}"] if timed else []
    if not sources:
        return TimePlan(len(runs), len(done), None if waiting else 0.0, problem)
    several = f"; {jobs} at a time" if jobs > 1 else ""
    missing = f"; without what cannot be timed ({problem})" if problem else ""
    how = f"a rough guess from {' and '.join(sources)} on this machine{several}{missing}"
    return TimePlan(len(runs), len(done), total, how)


def _budget(recipe: Recipe) -> Hashable:
    """The same for runs that take as long but for their loss and method."""
    training = recipe.training
    length = (training.epochs, training.max_steps, training.batch_size)
    return recipe.data, recipe.encoder.backbone, length, recipe.protocol.name


def _method(recipe: Recipe) -> tuple[PartSection, PartSection]:
    return recipe.objective, recipe.method


def _seconds(run: PlannedRun, jobs: int) -> float | None:
    """The machine's time for a finished run, of which several may be made at once; None of other hardware."""
    try:
        scores = run.folder.scores()
        here = describe_hardware(pick_device(run.recipe.training.device))
        # Runs side by side are given fewer threads each, on the same hardware.
        then, now = (re.sub(r", \d+ threads", "", hardware) for hardware in (scores.conditions.hardware, here))
        return float(scores.seconds) / max(jobs, run.outcome.side_by_side) if then == now else None
    except (NearkinError, ValueError, TypeError):
        return None


def _share_done(run: PlannedRun) -> float:
    try:
        rows = run.folder.evaluations()
    except (NearkinError, ValueError):
        return 0.0
    return share_done(run.recipe, rows[-1]) if rows else 0.0


def run_seconds(recipe: Recipe) -> float:
    """Seconds that a run of ``recipe`` will roughly take on this machine; finding out takes a few.

    The steps are real ones, of the recipe's encoder and loss in plain training, on noise of the images' size: nothing
    is decoded, and nothing is written. What a method does between the steps is not in it, nor is reading the images.
    """
    table = read_source(recipe.data.source, root=recipe.data.root, class_folders=recipe.data.class_folders)
    # Without the method, whose start can take long, and without the warm-up, whose steps are cheaper than the rest.
    plain = recipe.with_changes({"training.warmup_epochs": 0}).replace(method=PartSection("plain"))
    state = build_state(plain, OpenedImages(table, _stand_ins(table, data_of(recipe))))
    chosen_on, test = state.protocol.selection_set(), state.protocol.test
    try:
        with float32_products(recipe.training.precision):
            step = _step_seconds(state)
        # Once before the first step, then as often as the recipe says; the test classes before training and at the end.
        evaluations = 1 + math.ceil(state.total_steps / state.evaluation_interval)
        total = state.total_steps * step + evaluations * _evaluation_seconds(state, chosen_on)
        return total + (1 if test is chosen_on else 2) * _evaluation_seconds(state, test)
    finally:
        del state
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _stand_ins(table: ImageTable, section: DataSection) -> Images:
    """Images that lie in memory themselves; in the place of files, one of noise that stands for all."""
    if isinstance(table.images, np.ndarray):
        return open_images(table, cache_dir=None).images
    size = (section.shorter_side, 4 * section.shorter_side // 3, 3)
    one = np.random.default_rng(0).integers(0, 256, size, dtype=np.uint8)
    return np.broadcast_to(one, (len(table), *size))


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
    pieces = math.ceil(whole / (state.micro_batch or whole))

    def seconds(images: int) -> float:
        # In as many pieces as the whole batch will go: all but the last are embedded twice.
        state.micro_batch = math.ceil(images / pieces)
        return _timed(state, images, STEPS)

    _timed(state, min(begin, whole), 1)  # the first step also makes everything ready
    return counted_up(seconds, whole, begin=begin)


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
        state.embed(rows[:images], as_scored=True).cpu()
        return time.monotonic() - began

    return ranking + counted_up(embedding, len(rows), patience=1.0)
