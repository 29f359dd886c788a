"""A whole run, from a recipe to a folder with scores; and a final model from every class, by the same recipe."""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from nearkin import ranks
from nearkin.data.cache import Progress
from nearkin.disk import check_room, remove_leftovers, sole_writer_of, write_atomically
from nearkin.errors import RecipeError, catching_out_of_memory, notice
from nearkin.evaluation.confidence import confidence_among
from nearkin.evaluation.splits import StoredSplit
from nearkin.recipe import LENGTH, LOCATIONS, Recipe, fingerprint
from nearkin.runs.data import Announce, RunData, open_data, open_own_data, report_on, split_as_stored
from nearkin.runs.folder import Environment, RunFolder, weights_hash
from nearkin.runs.model_card import model_card
from nearkin.runs.scores import Conditions, Cost, FinalOf, NewImages, Scores
from nearkin.training import checkpoint
from nearkin.training.build import build_state, data_of
from nearkin.training.device import describe_hardware, float32_products, peak_process_memory
from nearkin.training.loop import fit
from nearkin.training.optimisation import change_epochs
from nearkin.training.recipe_check import check_recipe, validate
from nearkin.training.state import Observer, TrainingState


def run(
    recipe: Recipe,
    folder: RunFolder | str | Path,
    observer: Observer | None = None,
    *,
    resume: bool = False,
    finish: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
    score_test: bool = True,
    announce: Announce | None = None,
) -> Scores:
    """Train as ``recipe`` says and write everything to ``folder``; returns the content of ``scores.json``.

    Only one process writes to a folder at a time. A resumed run uses the images, classes and split that it began with
    (``split.csv``). If the images have moved, set ``data.source`` of ``recipe`` to their new place.

    Processes started by torchrun train together, in a folder that all of their machines share. If torchrun restarts
    them after losing one, they resume from the last checkpoint.

    Args:
        recipe: what to train.
        folder: of the run.
        observer: called after each step and evaluation.
        resume: continue the run in ``folder``; a finished run returns its scores. ``training.epochs`` and
            ``training.max_steps`` may be changed to make it longer or shorter.
        finish: end the run in ``folder`` at its last checkpoint, and choose and score its best evaluation.
        overwrite: remove the run in ``folder`` and begin again.
        progress: called while images are decoded.
        score_test: whether the test classes are scored; if not, the protocol must choose the epoch without them.
        announce: called with a report on the data before training.

    Raises:
        RecipeError: for a recipe that cannot be followed, or that is not the one the folder was begun with.
        DataError: where images are missing, unreadable, or too few; or a file of the folder is damaged.
        OutputError: where the folder cannot be written to, or has no room for the checkpoints.
        BusyError: while another process writes to the folder.
        InterruptedRunError: after Ctrl-C or SIGTERM; as after ``OutOfMemoryError`` the run can be resumed.
    """
    folder = folder if isinstance(folder, RunFolder) else RunFolder(folder)
    recipe = check_recipe(recipe)
    validate(recipe)
    if folder.path.exists() and not folder.path.is_dir():
        raise RecipeError(f"{folder.path} is a file: give a folder for the run with -o")
    with ranks.joined(), catching_out_of_memory(), contextlib.ExitStack() as stack:
        restarted = ranks.from_first(lambda: ranks.was_restarted() and folder.is_begun)
        resume, overwrite = resume or finish or restarted, overwrite and not restarted

        def finished() -> Scores | None:
            changed = _check_folder(recipe, folder, resume=resume, overwrite=overwrite)
            return folder.scores() if resume and folder.is_finished and not changed else None

        def lock_folder() -> dict[str, str]:
            stack.enter_context(sole_writer_of(folder.path))
            changed = _check_folder(recipe, folder, resume=resume, overwrite=overwrite)
            if finish and not folder.last_checkpoint.exists():
                raise RecipeError(
                    f"{folder.path} has no checkpoint yet, so there is nothing to finish: {folder.resume_command}"
                )
            remove_leftovers(folder.path)
            remove_leftovers(folder.checkpoints)
            return changed

        # Before anything is written: a finished run may be on a read-only disk.
        if (scores := ranks.from_first(finished)) is not None:
            return scores
        changed = ranks.from_first(lock_folder)
        lost: dict[str, int] = {}
        if ranks.from_first(lambda: resume and (folder.is_finished or folder.last_checkpoint.exists())):
            data = ranks.first_on_each_machine(lambda: _open_stored(recipe, folder, changed, progress=progress))
            longer = [text for key, text in changed.items() if key in LENGTH]
            if ranks.from_first(lambda: folder.is_finished) and not longer:
                folder.write_recipe(recipe)
                return ranks.from_first(folder.scores)
            if announce is not None:
                announce(report_on(recipe, data.images, data.protocol))
            state = build_state(recipe, data.images, splits=data.protocol.splits, score_test=score_test)
            _check_room(state, folder)
            checkpoint.load_last(state, folder)
            if longer:
                state.ended = False
                effect = change_epochs(state.scheduler, state.optimiser, recipe.training.epochs)
                notice(f"{folder.path}: {', '.join(longer)}; {effect}")
                # Before the recipe changes: a run that is killed now resumes with the schedule of its recipe.
                with checkpoint.BackgroundWriter() as writer:
                    checkpoint.save_last(state, folder, writer)
            if not folder.environment_file.exists():
                folder.write_environment(Environment.of(state, folder.split))
            if changed:
                folder.reopen(recipe)
            folder.write_evaluations(state.history)
            folder.write_events(state.method.events)
            lost = {split: len(images) for split, images in data.changes.lost.items() if images}
        else:
            if resume and folder.environment_file.exists():
                notice(f"{folder.path} has no checkpoint yet: the run begins at its first step")
            opened = ranks.first_on_each_machine(lambda: open_data(data_of(recipe), progress=progress))
            if announce is not None:
                announce(report_on(recipe, opened))
            state = build_state(recipe, opened, score_test=score_test)
            _check_room(state, folder)
            if overwrite:
                folder.clear()
            folder.begin(recipe)
            folder.write_split(StoredSplit.of(opened.table, state.protocol.splits, opened.digests))
            folder.write_environment(Environment.of(state, folder.split))
        _check_shared(folder)
        with float32_products(recipe.training.precision):
            watching = Observer() if observer is None or not ranks.is_first() else observer
            fit(state, folder, watching, finish=finish)
            scores = _final_scores(state, folder, lost)
            if scores.test is not None:
                watching.on_test(state, scores.test)
        folder.write_scores(scores)
        return scores


def _open_stored(recipe: Recipe, folder: RunFolder, changed: Collection[str], *, progress: Progress | None) -> RunData:
    """The images that a run began with. Images and weights may have moved, with the same content."""
    if "encoder.weights" in changed and folder.environment().weights_hash != weights_hash(recipe.encoder):
        raise RecipeError(
            f"{folder.path} was begun with other weights than {recipe.encoder.weights}: resume with the same file, "
            f"or give another folder with -o"
        )
    data = split_as_stored(folder, recipe, open_own_data(folder, data_of(recipe), progress=progress), trains=True)
    for key in set(LOCATIONS) & set(changed):
        section, name = key.split(".")
        value = getattr(getattr(recipe, section), name)
        notice(f"{folder.path}: its content is the same, so {key} is {value} from now on")
    return data


def _check_folder(recipe: Recipe, folder: RunFolder, *, resume: bool, overwrite: bool) -> dict[str, str]:
    """Refuse a folder that is not as the caller expects; returns the keys that a resumed run changes."""
    if resume and overwrite:
        raise RecipeError("--resume and --overwrite contradict each other: give one of them")
    if resume and not folder.is_begun:
        raise RecipeError(
            f"there is no run in {folder.path} to continue: name its folder with -o, or begin it without --resume"
        )
    if resume:
        return folder.check_same_recipe(recipe, may_differ=(*LOCATIONS, *LENGTH))
    if folder.is_begun and not overwrite:
        what = "a finished run" if folder.is_finished else "a run that is not finished"
        raise RecipeError(
            f"{folder.path} holds {what}: continue it with --resume, begin again with --overwrite, "
            f"or give another folder with -o"
        )
    return {}


def _check_shared(folder: RunFolder) -> None:
    """Refuse a folder that some machines do not see: at the end every rank reads the best weights there."""
    ranks.wait_for_all()
    deadline = time.monotonic() + 10  # shared file systems show new files with a delay
    while not folder.recipe_file.exists():
        if time.monotonic() > deadline:
            raise RecipeError(
                f"process {ranks.rank()} does not see {folder.path}: give a folder with -o that all machines share"
            )
        time.sleep(0.1)


def _check_room(state: TrainingState, folder: RunFolder) -> None:
    """Refuse a disk without room for two last checkpoints and two best ones."""

    def size(*modules: nn.Module | None) -> int:
        tensors = [tensor for module in modules if module is not None for tensor in module.state_dict().values()]
        return sum(tensor.nbytes for tensor in tensors if isinstance(tensor, Tensor))

    encoder = size(state.encoder)
    weights = encoder + ranks.world() * size(state.objective, state.learned)  # the proxies of every rank
    last = 3 * weights + (0 if state.ema is None else encoder)  # with two moments of each
    present = sum(file.stat().st_size for file in folder.checkpoints.glob("*.pt"))
    check_room(folder.path, max(0, 2 * last + 2 * weights + encoder - present), "the checkpoints")


def _final_scores(state: TrainingState, folder: RunFolder, lost: Mapping[str, int]) -> Scores:
    """Restore the best weights, write the encoder, score the test classes and collect the results."""
    protocol = state.protocol
    last = state.history[-1]
    if protocol.selects_on != "last":
        checkpoint.load_best(state, folder)
    checkpoint.save_encoder(state, folder)
    test = None if protocol.test is None else state.score(protocol.test, final=True)
    new_images, no_new_images = _score_new_images(state)
    steps_s = max(state.time.by["steps"], 1e-9)
    on_gpu = state.device.type == "cuda"
    peak = torch.cuda.max_memory_allocated(state.device) if on_gpu else peak_process_memory()
    return Scores(
        Conditions(
            data=state.table.name,
            objective=state.recipe.objective.name,
            method=state.recipe.method.name,
            protocol=protocol.section.name,
            selection=protocol.selection_rule,
            test_classes=protocol.test_classes,
            training_conditions=protocol.training_conditions,
            weights=None if state.ema is None else f"weights averaged over the steps ({state.ema.decay:g})",
            seed=state.recipe.training.seed,
            hardware=describe_hardware(state.device),
            recipe=fingerprint(state.recipe),
        ),
        steps=state.step,
        epochs=round(state.epoch, 4),
        seconds=round(state.time.seconds, 1),
        seconds_by={part: round(seconds, 1) for part, seconds in state.time.by.items()},
        cost=Cost(
            step_ms=round(1e3 * steps_s / max(state.step, 1), 3),
            images_per_second=round(state.step * state.recipe.training.batch_size / steps_s, 1),
            peak_mib=round(peak / 2**20, 1),
        ),
        untrained=state.untrained,
        test=test,
        new_images=new_images,
        no_new_images=no_new_images,
        best=state.best if protocol.selects_on != "last" else last,
        last=last,
        collapse=state.collapse,
        lost_images=lost,
    )


def _score_new_images(state: TrainingState) -> tuple[NewImages | None, str | None]:
    """How well an index of the training classes would label the held-out images, or why that is not known."""
    protocol = state.protocol
    if not len(protocol.holdout):
        return None, None
    rows = np.union1d(protocol.train_rows, protocol.holdout)
    with state.time.on("evaluations"):
        what = "scoring new images of the training classes"
        embeddings = state.embed(rows, encoder=state.eval_encoder, as_scored=True, what=what)
        vectors, held_out = embeddings.float().cpu().numpy(), np.flatnonzero(np.isin(rows, protocol.holdout))
        learned = confidence_among(vectors, state.table.labels[rows], held_out, state.encoder.distance)
    if isinstance(learned, str):
        return None, learned
    counts = len(protocol.holdout), len(np.unique(state.table.labels[protocol.holdout]))
    return NewImages(*counts, learned.accuracy, learned.refused, learned.unknown_refused), None


def train_final(
    path: str | Path,
    observer: Observer,
    *,
    output: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    data_root: str | Path | None = None,
    device: str | None = None,
    progress: Progress | None = None,
    announce: Announce | None = None,
) -> Scores:
    """Train on every class with the recipe of a finished run, from the same start, up to the epoch that it chose.

    This model has no score of its own: ``final_of`` in its ``scores.json`` holds those of the run at ``path``. The
    folder, by default the run's with ``-final`` appended, also gets a ``MODEL_CARD.md``.
    """
    chosen = RunFolder.existing(path)
    scores = chosen.scores()
    changes = {"data.root": data_root and str(data_root), "training.device": device}
    recipe = final_recipe(chosen.recipe(), scores, chosen.evaluations())
    recipe = recipe.with_changes({key: value for key, value in changes.items() if value is not None})
    folder = RunFolder(output or final_folder(path))
    if folder.path.resolve() == chosen.path.resolve():
        raise RecipeError(f"{folder.path} is the run itself: give another folder for the final model with -o")
    final = run(recipe, folder, observer, resume=resume, overwrite=overwrite, progress=progress, announce=announce)
    final = replace(final, final_of=FinalOf(str(path), _note(str(path), scores), scores))
    if ranks.is_first():
        write_atomically(folder.card_file, model_card(folder, recipe, final, folder.environment()).encode())
        folder.write_scores(final)
    return final


def final_folder(path: str | Path) -> Path:
    """The default folder of a run's final model.

    >>> str(final_folder("runs/photos/"))
    'runs/photos-final'
    """
    folder = Path(path) if Path(path).name else Path(path).resolve()
    return folder.with_name(f"{folder.name}-final")


def final_recipe(recipe: Recipe, scores: Scores, evaluations: Sequence[Mapping[str, float | None]] = ()) -> Recipe:
    """The recipe for training on every class up to the epoch that a run chose, with the same learning rates.

    A plateau schedule becomes milestones at the epochs where the rate fell.
    """
    if recipe.protocol.name == "everything":
        raise RecipeError("this run trained on every class already: give the one whose epoch and score it took")
    epoch = float(scores.chosen.get("epoch", 0.0))
    if epoch == 0:
        raise RecipeError("the run took no training step, so there is no epoch to train to")
    recipe = recipe.with_changes(
        {
            "training.max_steps": None,
            "training.stop_at_epoch": epoch,
            "training.early_stop_patience": None,
            "protocol.name": "everything",
            "protocol.train_share": 1.0,
            "protocol.label_noise": 0.0,
            "protocol.monitor_test": False,
        }
    )
    if recipe.training.schedule == "plateau":
        # The row of an evaluation has the rate from before it.
        milestones = tuple(
            math.ceil(before["epoch"] or 0.0)
            for before, after in itertools.pairwise(evaluations)
            if (after["lr"] or 0.0) < (before["lr"] or 0.0)
        )
        recipe = recipe.with_changes({"training.schedule": "milestones", "training.milestones": milestones})
    return recipe


def _note(path: str, scores: Scores) -> str:
    if not scores.test:
        return f"{path} kept no classes for testing, so nothing is known of how well this encoder does on new ones."
    note = (
        f"These scores are of {path}: the same recipe on fewer images, scored on {scores.conditions.test_classes}. "
        f"This encoder was trained on those classes too, so it has no score on unseen classes of its own."
    )
    if scores.chosen_on_test:
        note += " The epoch was chosen on the test classes, which flatters the scores."
    return note
