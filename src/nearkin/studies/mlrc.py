"""The metric-learning reality check: one model per class fold, scored one by one and side by side, with repeats.

The models of a repeat hold out one class fold each. Their test scores are averaged (``separate``), and their embeddings
of the test images are put side by side and scored as one (``concatenated``). A run can be stopped at any time: the same
call goes on, finished models and their embeddings are kept, and more repeats only add models.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from nearkin.data.cache import OpenedImages
from nearkin.disk import check_writable, write_atomically
from nearkin.errors import (
    BusyError,
    DataError,
    InterruptedRunError,
    MissingExtraError,
    NearkinError,
    RecipeError,
    TrainingError,
)
from nearkin.evaluation.confidence import Interval, combination_interval, mean_interval
from nearkin.evaluation.ensemble import concatenate_embeddings, fold_combinations
from nearkin.evaluation.protocol import Protocol
from nearkin.evaluation.retrieval import retrieval_scores
from nearkin.evaluation.stored_split import StoredSplit
from nearkin.recipe import Recipe
from nearkin.runs.admission import admit
from nearkin.runs.data import RunData, open_data, report_on, split_as_stored
from nearkin.runs.data_report import Announce
from nearkin.runs.default_folders import found_again, holds_run_of, usual_folder
from nearkin.runs.folder import RunFolder
from nearkin.runs.lock import sole_writer_of
from nearkin.runs.run import load_run
from nearkin.studies.pool import train_side_by_side
from nearkin.studies.study import Row, StudyRun, figure
from nearkin.training.device import pick_device
from nearkin.training.observers import ConsoleObserver

METRICS = ("R@1", "P@R", "MAP@R")
"""What the reality check reports; its P@1 is the same as R@1."""
MOST_COMBINATIONS = 256


def run_mlrc(
    recipe: Recipe,
    folder: str | Path,
    *,
    repeats: int = 1,
    jobs: int = 1,
    console: Console | None = None,
    announce: Announce | None = None,
) -> dict[str, Any]:
    """Train ``folds × repeats`` models into ``folder/fold-<fold>/seed-<seed>`` and score them.

    Every model has a seed of its own, ``training.seed + repeat * folds + fold``: with one seed the models would start
    from the same projection, and side by side say little more than one alone.

    ``separate``: for every repeat the mean score of its models, then the mean over repeats with Student's t interval at
    95 %. ``concatenated``: every combination of one repeat per fold is an ensemble, ``repeats ** folds`` in all; where
    these are more than 256, so many are drawn, seeded by ``protocol.split_seed``. The mean is over combinations; its
    interval counts models, not combinations, which share them
    (:func:`nearkin.evaluation.confidence.combination_interval`). One repeat has no interval.

    Args:
        recipe: what every model is trained with; its protocol becomes ``mlrc``, with the ``folds`` it names.
        folder: where the models and ``mlrc.json`` go.
        repeats: models per fold.
        jobs: models that are trained at a time, each in a process of its own.
        console: where progress goes.
        announce: told what was understood of the data, before anything is trained.

    Returns:
        What ``mlrc.json`` holds. A figure is ``{"mean", "spread", "interval", "values"}``: ``spread`` is the sample
        standard deviation of the values, one for each repeat or combination, and ``interval`` is ``[low, high]``; both
        are None with a single value.

    Raises:
        RecipeError: where the folder holds models of another recipe.
        DataError: before anything is trained, where the data do not have the classes for it.
        InterruptedRunError: after Ctrl-C or SIGTERM; calling again goes on.
    """
    if repeats < 1 or jobs < 1:
        raise RecipeError(f"repeats and jobs must be at least 1, got {repeats} and {jobs}")
    console = console or Console(quiet=True)
    check_writable(Path(folder))
    models = mlrc_models(recipe, folder, repeats)
    for model in models:
        if model.folder.is_begun:
            model.folder.check_same_recipe(model.recipe)
    if not all(model.folder.is_finished for model in models):
        admit(models[0].recipe)
    with ConsoleObserver(console) as observer:
        data = open_data(recipe.data, progress=observer.decoding)
    if announce is not None and not all(model.folder.is_finished for model in models):
        announce(report_on(models[0].recipe, data))
    _check_images(models, data)
    _train([model for model in models if not model.folder.is_finished], len(models), jobs, console)
    result = _result(models, data, console)
    write_atomically(Path(folder) / "mlrc.json", json.dumps(result, indent=2, ensure_ascii=False).encode())
    return result


def default_mlrc_folder(recipe: Recipe) -> Path:
    """``runs/mlrc-<data>-<objective>-<hash>``: the same recipe always has the same folder.

    >>> default_mlrc_folder(Recipe()).name.startswith("mlrc-glyphs-proxy_anchor-")
    True
    """
    usual = usual_folder(_fold_recipe(recipe, 0))
    first = mlrc_models(recipe, "", 1)[0]
    place = first.folder.path
    return found_again(usual.with_name(f"mlrc-{usual.name}"), lambda folder: holds_run_of(folder / place, first.recipe))


def mlrc_models(recipe: Recipe, folder: str | Path, repeats: int) -> list[StudyRun]:
    """Every model with its recipe, seed and folder, repeat by repeat.

    >>> [model.seed for model in mlrc_models(Recipe(), "runs/x", 2)]
    [0, 1, 2, 3, 4, 5, 6, 7]
    """
    folds = recipe.protocol.folds
    models = []
    for repeat in range(repeats):
        for fold in range(folds):
            row = Row(f"fold-{fold}", f"fold {fold} of 0–{folds - 1}, repeat {repeat}", _fold_recipe(recipe, fold))
            seed = recipe.training.seed + repeat * folds + fold
            models.append(StudyRun(row, seed, RunFolder(Path(folder) / row.name / f"seed-{seed}")))
    return models


def embed_test_rows(model: StudyRun, data: OpenedImages, protocol: Protocol) -> Tensor:
    """Embeddings of the test rows (queries, then gallery) with the chosen epoch's weights, on the host.

    They are kept beside the model, in a file named after its weights and the images, and read from there the next time.
    """
    assert protocol.test is not None, "check_trainable comes first"
    rows = protocol.test.rows
    with open(model.folder.encoder_file, "rb") as weights:
        mark = hashlib.file_digest(weights, "sha256")
    mark.update("\n".join(data.table.ids[row] for row in rows.tolist()).encode())
    file = model.folder.path / f"test_embeddings-{mark.hexdigest()[:12]}.npy"
    if file.exists():
        return torch.from_numpy(np.load(file))
    trained = load_run(model.folder.path, device=model.recipe.training.device)
    embeddings = trained.embed(data.images, rows).cpu()
    for outdated in model.folder.path.glob("test_embeddings-*.npy"):
        outdated.unlink()
    content = io.BytesIO()
    np.save(content, embeddings.numpy())
    write_atomically(file, content.getvalue())
    return embeddings


def _fold_recipe(recipe: Recipe, fold: int) -> Recipe:
    return recipe.replace(protocol=dataclasses.replace(recipe.protocol, name="mlrc", fold=fold))


def _check_images(models: Sequence[StudyRun], data: OpenedImages) -> None:
    """Refuse, before anything is trained, data that do not suffice or are not those of the models begun before."""
    for model in models:
        protocol = Protocol(model.recipe.protocol, data.table)
        stored = model.folder.stored_split
        if not model.folder.last_checkpoint.exists() and not model.folder.is_finished:
            protocol.check_trainable()
        elif stored is not None and stored.mark != StoredSplit.of(data.table, protocol.splits, data.digests).mark:
            if all(each.folder.is_finished for each in models):
                continue
            _, _, changes = stored.restore(data)
            said = "; ".join(changes.said(scored=("train", "validation", "test", "query", "gallery")))
            raise DataError(
                f"the images are not those that {model.folder.path} was trained on, and models of other images make "
                f"no ensemble ({said or 'files have other names'}): put them back as they were, or begin anew with -o"
            )


def _check_same_test(models: Sequence[StudyRun], own: Sequence[RunData]) -> None:
    """Embeddings can only be put side by side where they are of the same images."""

    def tested(data: RunData) -> list[str]:
        test = data.protocol.test
        return [] if test is None else [data.images.digests[row] for row in test.rows.tolist()]

    for model, data in zip(models, own, strict=True):
        if tested(data) != tested(own[0]):
            raise DataError(
                f"{model.folder.path} was not tested on the images of {models[0].folder.path}: models of other images "
                f"make no ensemble; begin anew with -o"
            )


def _train(waiting: Sequence[StudyRun], planned: int, jobs: int, console: Console) -> None:
    if len(waiting) < planned:
        console.print(f"{planned - len(waiting)} of {planned} models are trained already", highlight=False)
    if not waiting:
        return
    problems: list[tuple[StudyRun, int, str]] = []

    def begin(model: StudyRun) -> None:
        with sole_writer_of(model.folder.path):
            if not model.folder.is_begun:
                model.folder.begin(model.recipe)

    def end(model: StudyRun, code: int, reason: str) -> None:
        if not model.folder.is_finished:
            problems.append((model, code, reason))

    try:
        train_side_by_side(waiting, at_once=jobs, begin=begin, end=end, console=console)
    except InterruptedRunError as stop:
        done = planned - sum(not model.folder.is_finished for model in waiting)
        raise InterruptedRunError(
            f"interrupted with {done} of {planned} models trained; what was begun is saved. "
            f"The same command goes on from here"
        ) from stop
    if problems:
        model, code, reason = problems[0]
        kinds: tuple[type[NearkinError], ...] = (RecipeError, DataError, MissingExtraError, BusyError)
        kind = next((kind for kind in kinds if kind.exit_code == code), TrainingError)
        raise kind(f"{len(problems)} of {planned} models did not finish: {model.label}: {reason}")


def _result(models: Sequence[StudyRun], data: OpenedImages, console: Console) -> dict[str, Any]:
    recipe = models[0].recipe
    folds, repeats = recipe.protocol.folds, len(models) // recipe.protocol.folds
    own = [split_as_stored(model.folder, model.recipe, data) for model in models]
    protocols = [each.protocol for each in own]
    _check_same_test(models, own)
    embeddings = [embed_test_rows(model, each.images, each.protocol) for model, each in zip(models, own, strict=True)]
    single = [_scores(each, protocols[0], recipe) for each in embeddings]
    by_repeat = [single[repeat * folds : (repeat + 1) * folds] for repeat in range(repeats)]
    combinations = fold_combinations(folds, repeats, limit=MOST_COMBINATIONS, seed=recipe.protocol.split_seed)
    if len(combinations) > 1:
        console.print(f"scoring {len(combinations)} combinations of models", highlight=False)
    together = []
    for combination in combinations.tolist():
        members = [embeddings[repeat * folds + fold] for fold, repeat in enumerate(combination)]
        joined = concatenate_embeddings(members, normalisation=recipe.encoder.normalisation)
        together.append(_scores(joined, protocols[0], recipe))
    runs = [model.folder.scores() for model in models]
    separate, concatenated = {}, {}
    for name in METRICS:
        means = [sum(scores[name] for scores in group) / folds for group in by_repeat]
        separate[name] = _figure(means, mean_interval(means))
        values = [scores[name] for scores in together]
        concatenated[name] = _figure(values, combination_interval(combinations, values))
    return {
        "protocol": "mlrc",
        "selection": f"best {protocols[0].select_by} on the held-out class fold of each model",
        "select_by": protocols[0].select_by,
        "folds": folds,
        "repeats": repeats,
        "data": data.table.name,
        "test_classes": protocols[0].test_classes,
        "objective": recipe.objective.name,
        "method": recipe.method.name,
        "backbone": recipe.encoder.backbone,
        "dim": embeddings[0].shape[1],
        "concatenated_dim": folds * embeddings[0].shape[1],
        "separate": separate,
        "concatenated": concatenated,
        "combinations": {
            "scored": len(combinations),
            "possible": repeats**folds,
            "repeats_by_fold": combinations.tolist(),
            "seed": recipe.protocol.split_seed,
        },
        "training_conditions": protocols[0].training_conditions,
        "seeds": [model.seed for model in models],
        "hardware": " and ".join(sorted({str(run["hardware"]) for run in runs})),
        "recipe": recipe.fingerprint(),
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
        "models": [
            {
                "repeat": number // folds,
                "fold": number % folds,
                "seed": model.seed,
                "recipe": run["recipe"],
                "selection": run["selection"],
                "hardware": run["hardware"],
                "epoch": (run["best"] or {}).get("epoch"),
                "chosen_by": (run["best"] or {}).get(protocols[0].select_by),
                "seconds": run["seconds"],
                "scores": single[number],
            }
            for number, (model, run) in enumerate(zip(models, runs, strict=True))
        ],
    }


def _scores(embeddings: Tensor, protocol: Protocol, recipe: Recipe) -> dict[str, float]:
    """R@1, P@R and MAP@R of embedded test rows, searched as the protocol's test set says."""
    test, labels = protocol.test, protocol.table.labels
    assert test is not None, "check_trainable comes first"
    vectors = embeddings.to(pick_device(recipe.training.device))
    queries = len(test.query)
    scores = retrieval_scores(
        vectors[:queries],
        labels[test.query],
        None if test.gallery is None else vectors[queries:],
        None if test.gallery is None else labels[test.gallery],
        recall_at=(1,),
        distance="cosine" if recipe.encoder.normalisation == "l2" else "euclidean",
    )
    return {name: scores[name] for name in METRICS}


def _figure(values: Sequence[float], interval: Interval | None) -> dict[str, Any]:
    made = figure(values)
    assert made is not None, "there is a value for every repeat"
    return {**made, "interval": None if interval is None else list(interval)}
