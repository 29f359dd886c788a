"""A whole run, from a recipe to a folder with scores."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from nearkin import ranks
from nearkin.data.cache import OpenedImages
from nearkin.disk import check_room, remove_leftovers
from nearkin.errors import RecipeError, catching_out_of_memory, notice
from nearkin.evaluation.stored_split import StoredSplit
from nearkin.proxies.bank import banks_in
from nearkin.recipe import Recipe
from nearkin.recipe.identity import fingerprint
from nearkin.runs.data import (
    Announce,
    Progress,
    RunData,
    open_data,
    open_own_data,
    report_on,
    split_as_stored,
)
from nearkin.runs.environment import Environment, weights_hash
from nearkin.runs.folder import RunFolder
from nearkin.runs.lock import sole_writer_of
from nearkin.runs.scores import Conditions, Cost, Scores
from nearkin.training import checkpoint
from nearkin.training.build import build_state, data_of
from nearkin.training.device import describe_hardware, float32_products, peak_process_memory
from nearkin.training.loop import fit
from nearkin.training.recipes import check_recipe, validate
from nearkin.training.state import NullObserver, Observer, TrainingState


def run(
    recipe: Recipe,
    folder: RunFolder | str | Path,
    observer: Observer | None = None,
    *,
    resume: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
    score_test: bool = True,
    announce: Announce | None = None,
) -> Scores:
    """Train as ``recipe`` says and leave everything in ``folder``; returns what ``scores.json`` holds.

    A folder that already holds a run is never written over by accident: ``resume`` continues it (a finished run just
    gives its scores back), ``overwrite`` begins anew; and no two processes write to it at a time. A run goes on with
    the very images, classes and split that it began with (``split.csv``), which may lie elsewhere by now: then
    ``data.source`` of ``recipe`` says where, and the folder takes it over. Without ``score_test`` the test classes are
    not looked at, as is right where several runs are compared to choose between them; the protocol must then choose
    the epoch without them. ``announce`` is told before anything is trained what was understood of the data.

    Processes that torchrun has started train together, in a folder that all of their machines see. Where it has started
    them anew, after one was lost, they go on from the last checkpoint by themselves.

    Raises:
        RecipeError: for a recipe that cannot be followed, or that is not the one the folder was begun with.
        DataError: where images are missing, unreadable, or too few; or a file of the folder is damaged.
        OutputError: where the folder cannot be written to, or has no room for the checkpoints.
        BusyError: while another process writes to the folder.
        InterruptedRunError: after Ctrl-C or SIGTERM; ``resume`` goes on.
        LostRankError: where one of several processes has ended.
        OutOfMemoryError: where memory is full in the middle of it; ``resume`` goes on.
    """
    folder = folder if isinstance(folder, RunFolder) else RunFolder(folder)
    recipe = check_recipe(recipe)
    validate(recipe)
    if folder.path.exists() and not folder.path.is_dir():
        raise RecipeError(f"{folder.path} is a file: give a folder for the run with -o")
    with ranks.joined(), catching_out_of_memory(), contextlib.ExitStack() as held:
        again = ranks.from_first(lambda: ranks.was_restarted() and folder.is_begun)
        resume, overwrite = resume or again, overwrite and not again

        def finished() -> Scores | None:
            """The scores of a run that is not to be touched any more."""
            return folder.scores() if resume and folder.is_finished and not _to_repair(folder) else None

        def admitted() -> list[str]:
            held.enter_context(sole_writer_of(folder.path))
            moved = _admit_folder(recipe, folder, resume=resume, overwrite=overwrite)
            for place in (folder.path, folder.checkpoints):
                remove_leftovers(place)
            return moved

        def untouched() -> Scores | None:
            done = finished()
            if done is not None and _admit_folder(recipe, folder, resume=resume, overwrite=overwrite):
                return None
            return done

        # Before anything is written: a finished run may lie where nothing can be.
        if (scores := ranks.from_first(untouched)) is not None:
            return scores
        moved = ranks.from_first(admitted)
        lost: dict[str, int] = {}
        if ranks.from_first(lambda: resume and (folder.is_finished or folder.last_checkpoint.exists())):
            data = ranks.first_on_each_machine(lambda: _own_images(recipe, folder, moved, progress=progress))
            if (scores := ranks.from_first(finished)) is not None:
                return scores
            if announce is not None:
                announce(report_on(recipe, data.images, data.protocol))
            state = _continued(recipe, folder, data, score_test=score_test)
            lost = {split: len(images) for split, images in data.changes.lost.items() if images}
        else:
            if resume and folder.environment_file.exists():
                notice(f"{folder.path} has no checkpoint yet: the run begins at its first step")
            opened = ranks.first_on_each_machine(lambda: open_data(data_of(recipe), progress=progress))
            if announce is not None:
                announce(report_on(recipe, opened))
            state = _begun(recipe, folder, opened, overwrite=overwrite, score_test=score_test)
        _check_shared(folder)
        with float32_products(recipe.training.precision):
            fit(state, folder, NullObserver() if observer is None or not ranks.is_first() else observer)
            scores = _final_scores(state, folder, lost)
        folder.write_scores(scores)
        return scores


def _begun(
    recipe: Recipe, folder: RunFolder, data: OpenedImages, *, overwrite: bool, score_test: bool
) -> TrainingState:
    """A run at its first step, its folder made ready."""
    state = build_state(recipe, data, score_test=score_test)
    _check_room(state, folder)
    if overwrite:
        folder.clear()
    folder.begin(recipe)
    folder.write_split(StoredSplit.of(data.table, state.protocol.splits, data.digests))
    folder.write_environment(Environment.of(state, folder.split))
    return state


def _own_images(recipe: Recipe, folder: RunFolder, moved: list[str], *, progress: Progress | None) -> RunData:
    """The images that a run began with, all that it trains on; the folder is told where they and the weights lie."""
    if "encoder.weights" in moved and folder.environment().weights_hash != weights_hash(recipe.encoder):
        raise RecipeError(
            f"{folder.path} was begun with other weights than {recipe.encoder.weights}: resume with the same file, "
            f"or give another folder with -o"
        )
    data = split_as_stored(folder, recipe, open_own_data(folder, data_of(recipe), progress=progress), trains=True)
    if moved:
        folder.begin(recipe)
    for key in moved:
        section, name = key.split(".")
        value = getattr(getattr(recipe, section), name)
        notice(f"{folder.path}: its content is the same, so {key} is {value} from now on")
    return data


def _continued(recipe: Recipe, folder: RunFolder, data: RunData, *, score_test: bool) -> TrainingState:
    """A run at its last checkpoint."""
    state = build_state(recipe, data.images, splits=data.protocol.splits, score_test=score_test)
    _check_room(state, folder)
    checkpoint.load_last(state, folder)
    checkpoint.check_best(state, folder)
    for name in folder.damaged():
        notice(f"{folder.path / name} cannot be read: it is written anew")
        if name == folder.recipe_file.name:
            folder.begin(recipe)
        if name == folder.environment_file.name:
            folder.write_environment(Environment.of(state, folder.split))
        if name == folder.events_file.name:
            folder.events_file.unlink()  # of a method without events nothing takes its place
    folder.write_evaluations(state.history)
    folder.write_events(state.method.events)
    return state


def _admit_folder(recipe: Recipe, folder: RunFolder, *, resume: bool, overwrite: bool) -> list[str]:
    """Refuse a folder that holds something else than the caller thinks; returns what of the recipe has moved since."""
    if resume and overwrite:
        raise RecipeError("--resume and --overwrite contradict each other: give one of them")
    if not folder.is_begun:
        if resume:
            raise RecipeError(
                f"there is no run in {folder.path} to continue: name its folder with -o, or begin it without --resume"
            )
        return []
    if resume:
        return folder.check_same_recipe(recipe, may_move=True)
    if not overwrite:
        what = "a finished run" if folder.is_finished else "a run that is not finished"
        raise RecipeError(
            f"{folder.path} holds {what}: continue it with --resume, begin anew with --overwrite, "
            f"or give another folder with -o"
        )
    return []


def _check_shared(folder: RunFolder) -> None:
    """Refuse a folder that only some of the machines see: each rank writes the proxies of its own classes there."""
    if ranks.world() == 1:
        return
    written = ranks.from_first(lambda: int(folder.recipe_file.stat().st_mtime))
    # What another machine has just written may take a moment to be seen.
    until = time.monotonic() + 10
    while not folder.recipe_file.exists() or int(folder.recipe_file.stat().st_mtime) != written:
        if time.monotonic() > until:
            raise RecipeError(
                f"{folder.path} of the first process is not there for process {ranks.rank()}: give a folder with -o "
                f"that all machines share"
            )
        time.sleep(0.1)


def _to_repair(folder: RunFolder) -> bool:
    """Whether something is damaged that the last checkpoint can write anew."""
    return folder.last_checkpoint.exists() and bool(folder.damaged() or not checkpoint.is_encoder_whole(folder))


def _check_room(state: TrainingState, folder: RunFolder) -> None:
    """A checkpoint is written beside the one before, so there must be room for two of them, and for the best twice."""

    def size(*modules: torch.nn.Module) -> int:
        tensors = itertools.chain.from_iterable(module.state_dict().values() for module in modules)
        return sum(each.nbytes for each in tensors if isinstance(each, Tensor))

    weights, encoder = size(state.encoder, state.objective), size(state.encoder)
    learned = sum(p.nbytes for group in state.optimiser.param_groups for p in group["params"])
    elsewhere = (ranks.world() - 1) * size(*banks_in(state.objective, state.learned))  # by the other ranks
    weights, learned = weights + elsewhere, learned + elsewhere
    moments = 2 if state.recipe.training.optimiser in ("adam", "adamw") else 1
    last = weights + moments * learned + (0 if state.ema is None else encoder)
    there = sum(file.stat().st_size for kind in ("*.pt", "*.safetensors") for file in folder.checkpoints.glob(kind))
    check_room(folder.path, max(0, 2 * last + 2 * weights + encoder - there), "the checkpoints")


def _final_scores(state: TrainingState, folder: RunFolder, lost: Mapping[str, int]) -> Scores:
    """Restore the best weights, export the encoder and put together what the run reports."""
    protocol = state.protocol
    last = state.history[-1] if state.history else {}
    if protocol.selects_on != "last":
        checkpoint.load_best(state, folder)
    checkpoint.save_encoder(state, folder)
    test = None if protocol.test is None else state.score(protocol.test, final=True)
    return Scores(
        Conditions(
            data=state.table.name,
            objective=state.recipe.objective.name,
            method=state.recipe.method.name,
            protocol=protocol.section.name,
            selection=protocol.selection_rule,
            test_classes=protocol.test_classes,
            training_conditions=protocol.training_conditions,
            weights=_averaged(state),
            seed=state.recipe.training.seed,
            hardware=describe_hardware(state.device),
            recipe=fingerprint(state.recipe),
        ),
        steps=state.step,
        epochs=round(state.epoch, 4),
        seconds=round(state.time.seconds, 1),
        seconds_by={part: round(seconds, 1) for part, seconds in state.time.by.items()},
        cost=_cost(state),
        untrained=state.untrained,
        test=test,
        best=state.best if protocol.selects_on != "last" else last,
        last=last,
        lost_images=lost,
    )


def _averaged(state: TrainingState) -> str | None:
    return None if state.ema is None else f"weights averaged over the steps ({state.ema.decay:g})"


def _cost(state: TrainingState) -> Cost:
    seconds = max(state.time.by["steps"], 1e-9)
    if state.device.type == "cuda":
        peak = torch.cuda.max_memory_allocated(state.device)
    else:
        peak = peak_process_memory()
    return Cost(
        step_ms=round(1e3 * seconds / max(state.step, 1), 3),
        images_per_second=round(state.step * state.recipe.training.batch_size / seconds, 1),
        peak_mib=round(peak / 2**20, 1),
    )
