"""Finished models of a reality check, scored one by one and with their embeddings side by side."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from nearkin.data.cache import OpenedImages
from nearkin.disk import write_atomically
from nearkin.errors import DataError
from nearkin.evaluation.confidence import combination_interval, mean_interval
from nearkin.evaluation.ensemble import concatenate_embeddings, fold_combinations
from nearkin.evaluation.protocol import Protocol, as_tested
from nearkin.evaluation.retrieval import retrieval_scores
from nearkin.evaluation.statistics import Statistic
from nearkin.recipe import Recipe
from nearkin.recipe.identity import fingerprint
from nearkin.runs.data import RunData, split_as_stored
from nearkin.runs.scores import ENSEMBLE_FILE, Combinations, Conditions, EnsembleScores, FoldModel
from nearkin.runs.trained_run import load_run
from nearkin.studies.study import PlannedRun
from nearkin.training.device import pick_device

METRICS = ("R@1", "P@R", "MAP@R")
"""What the reality check reports; its P@1 is the same as R@1."""
MOST_COMBINATIONS = 256


def score_models(models: Sequence[PlannedRun], data: OpenedImages, folder: Path, console: Console) -> None:
    """Score finished models alone and together, and leave that in the folder as ``mlrc.json``."""
    recipe = models[0].recipe
    folds, repeats = recipe.protocol.folds, len(models) // recipe.protocol.folds
    own = [split_as_stored(model.folder, model.recipe, data) for model in models]
    protocol = own[0].protocol
    _check_same_test(models, own)
    embeddings = [embed_test_rows(model, each.images, each.protocol) for model, each in zip(models, own, strict=True)]
    single = [_scores(each, protocol, recipe) for each in embeddings]
    combinations = fold_combinations(folds, repeats, limit=MOST_COMBINATIONS, seed=recipe.protocol.split_seed)
    if len(combinations) > 1:
        console.print(f"scoring {len(combinations)} combinations of models", highlight=False)
    together = []
    for combination in combinations.tolist():
        members = [embeddings[repeat * folds + fold] for fold, repeat in enumerate(combination)]
        joined = concatenate_embeddings(members, normalisation=recipe.encoder.normalisation)
        together.append(_scores(joined, protocol, recipe))
    runs = [model.folder.scores() for model in models]
    separate, concatenated = {}, {}
    for name in METRICS:
        alone, values = [scores[name] for scores in single], [scores[name] for scores in together]
        means = [sum(alone[first : first + folds]) / folds for first in range(0, len(alone), folds)]
        separate[name] = Statistic.of(means, mean_interval(means))
        concatenated[name] = Statistic.of(values, combination_interval(combinations, values))
    result = EnsembleScores(
        Conditions(
            data=data.table.name,
            objective=recipe.objective.name,
            method=recipe.method.name,
            protocol="mlrc",
            selection=as_tested(f"best {protocol.select_by} on the held-out class fold of each model", recipe.protocol),
            test_classes=protocol.test_classes,
            training_conditions=protocol.training_conditions,
            weights=runs[0].conditions.weights,
            hardware=" and ".join(sorted({run.conditions.hardware for run in runs})),
            recipe=fingerprint(recipe),
        ),
        select_by=protocol.select_by,
        folds=folds,
        repeats=repeats,
        backbone=recipe.encoder.backbone,
        dim=embeddings[0].shape[1],
        concatenated_dim=folds * embeddings[0].shape[1],
        separate={name: value for name, value in separate.items() if value},
        concatenated={name: value for name, value in concatenated.items() if value},
        combinations=Combinations(len(combinations), repeats**folds, combinations.tolist(), recipe.protocol.split_seed),
        seeds=[model.seed for model in models],
        models=[
            FoldModel(
                repeat=number // folds,
                fold=number % folds,
                seed=model.seed,
                recipe=run.conditions.recipe,
                selection=run.conditions.selection,
                hardware=run.conditions.hardware,
                epoch=run.chosen.get("epoch"),
                chosen_by=run.chosen.get(protocol.select_by),
                seconds=run.seconds,
                scores=single[number],
            )
            for number, (model, run) in enumerate(zip(models, runs, strict=True))
        ],
        written=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    text = json.dumps(dict(result), indent=2, ensure_ascii=False)
    write_atomically(folder / ENSEMBLE_FILE, text.encode())


def embed_test_rows(model: PlannedRun, data: OpenedImages, protocol: Protocol) -> Tensor:
    """Embeddings of the test rows (queries, then gallery) with the chosen epoch's weights, on the host.

    They are kept beside the model, in a file named after its weights and the images, and read from there the next time.
    """
    assert protocol.test is not None, "check_trainable comes first"
    rows = protocol.test.rows
    with open(model.folder.encoder_file, "rb") as weights:
        content_hash = hashlib.file_digest(weights, "sha256")
    content_hash.update("\n".join(data.table.ids[row] for row in rows.tolist()).encode())
    file = model.folder.path / f"test_embeddings-{content_hash.hexdigest()[:12]}.npy"
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


def _check_same_test(models: Sequence[PlannedRun], own: Sequence[RunData]) -> None:
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
