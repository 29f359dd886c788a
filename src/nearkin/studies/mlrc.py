"""The metric-learning reality check: one model per class fold, scored alone and concatenated, with repeats."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from nearkin.disk import write_atomically
from nearkin.errors import BusyError, DataError, MissingExtraError, NearkinError, RecipeError, TrainingError
from nearkin.evaluation.neighbours import Distance
from nearkin.evaluation.protocol import EvaluationSet, Protocol, as_tested
from nearkin.evaluation.retrieval import concatenate_embeddings, retrieval_scores
from nearkin.evaluation.statistics import Statistic, combination_interval, fold_combinations, mean_interval
from nearkin.recipe import Recipe, fingerprint
from nearkin.report.table import Part, Table, counted, markdown
from nearkin.runs.data import RunData, split_as_stored
from nearkin.runs.folder import Outcome, default_folder
from nearkin.runs.scores import ENSEMBLE_FILE, Combinations, EnsembleScores, FoldModel
from nearkin.runs.trained_run import load_run
from nearkin.studies.study import PlannedRun, Row, Study, opened, write_texts
from nearkin.training.device import pick_device
from nearkin.training.recipe_check import load_recipe

METRICS = ("R@1", "P@R", "MAP@R")
"""What the reality check reports; its P@1 is the same as R@1."""
MOST_COMBINATIONS = 256


def mlrc(
    recipe: Recipe | str,
    *,
    repeats: int = 1,
    changes: Iterable[str] = (),
    folder: str | Path | None = None,
    jobs: int = 1,
    console: Console | None = None,
) -> EnsembleScores:
    """Train ``folds × repeats`` models into ``folder/fold-<fold>/seed-<seed>``, score them and write the table.

    Finished models are kept: the same call resumes after an interruption, and more repeats only add models.

    ``separate``: for every repeat the mean score of its models, then the mean over repeats with Student's t interval at
    95 %. ``concatenated``: every combination of one repeat per fold is an ensemble, ``repeats ** folds`` in all; of
    more than 256, so many are drawn, seeded by ``protocol.split_seed``. The mean is over combinations; its interval
    counts models, not combinations, which share them. One repeat has no interval.

    Args:
        recipe: what every model is trained with, or its name; its protocol becomes ``mlrc``, with its ``folds``.
        repeats: models per fold.
        changes: ``section.key=value`` for a recipe that is given by name.
        folder: where the models and ``mlrc.json`` go; default: one that the same call finds again.
        jobs: models that are trained at a time, each in a process of its own.
        console: where progress goes.
    """
    check = RealityCheck(load_recipe(recipe, changes) if isinstance(recipe, str) else recipe, repeats, folder)
    check.run(jobs=jobs, console=console)
    check.write()
    return check.result


class RealityCheck(Study):
    """One model per class fold, with repeats; :func:`mlrc` runs it."""

    def __init__(self, recipe: Recipe, repeats: int = 1, folder: str | Path | None = None) -> None:
        if repeats < 1:
            raise RecipeError(f"repeats must be at least 1, got {repeats}")
        usual = default_folder(recipe.with_changes({"protocol.name": "mlrc", "protocol.fold": 0}))
        self.folder = Path(folder or usual.with_name(f"mlrc-{usual.name}"))
        self.rows = [Row(".", recipe.objective.name, recipe, mlrc=True)]
        self.seeds = range(recipe.training.seed, recipe.training.seed + repeats)

    def size(self) -> str:
        folds = self.rows[0].recipe.protocol.folds
        return f"{folds} folds × {counted(len(self.seeds), 'repeat')} = {counted(len(self.runs()), 'model')}"

    def finish(self, outcomes: list[Outcome], console: Console) -> list[Outcome]:
        if (failure := self.failure(outcomes)) is not None:
            errors: tuple[type[NearkinError], ...] = (RecipeError, DataError, MissingExtraError, BusyError)
            raise next((error for error in errors if error.exit_code == failure[1]), TrainingError)(failure[0])
        score_models(self.runs(), self.folder, console)
        return outcomes

    @property
    def result(self) -> EnsembleScores:
        result = EnsembleScores.read(self.folder)
        if result is None:
            raise DataError(f"{self.folder} has no {ENSEMBLE_FILE} yet: its models are not all trained")
        return result

    def table(self) -> Table:
        return mlrc_table(self.result)

    def record(self) -> dict[str, Any]:
        return {"folder": str(self.folder), **self.result}

    def write(self) -> list[Path]:
        """Write ``mlrc.md`` next to ``mlrc.json``."""
        return [*write_texts(self.folder, {"mlrc.md": markdown(self.table())}), self.folder / ENSEMBLE_FILE]


def score_models(models: Sequence[PlannedRun], folder: Path, console: Console) -> None:
    """Score finished models alone and concatenated, and write that to ``mlrc.json`` in the folder."""
    recipe = models[0].recipe
    data, folds = opened(recipe, console), recipe.protocol.folds
    repeats = len(models) // folds
    splits = [split_as_stored(model.folder, model.recipe, data) for model in models]
    protocol = splits[0].protocol
    _check_same_test(models, splits)
    embeddings = [embed_test_rows(model, split) for model, split in zip(models, splits, strict=True)]
    single = [_scores(vectors, protocol, recipe) for vectors in embeddings]
    combinations = fold_combinations(folds, repeats, limit=MOST_COMBINATIONS, seed=recipe.protocol.split_seed)
    if len(combinations) > 1:
        console.print(f"scoring {len(combinations)} combinations of models", highlight=False)
    ensembles = []
    for combination in combinations.tolist():
        members = [embeddings[repeat * folds + fold] for fold, repeat in enumerate(combination)]
        joined = concatenate_embeddings(members, normalisation=recipe.encoder.normalisation)
        ensembles.append(_scores(joined, protocol, recipe))
    runs = [model.folder.scores() for model in models]
    separate, concatenated = {}, {}
    for name in METRICS:
        alone, values = [scores[name] for scores in single], [scores[name] for scores in ensembles]
        means = [sum(alone[first : first + folds]) / folds for first in range(0, len(alone), folds)]
        separate[name] = Statistic.of(means, mean_interval(means))
        concatenated[name] = Statistic.of(values, combination_interval(combinations, values))
    conditions = replace(
        runs[0].conditions,
        selection=as_tested(f"best {protocol.select_by} on the held-out class fold of each model", recipe.protocol),
        seed=0,
        hardware=" and ".join(sorted({run.conditions.hardware for run in runs})),
        recipe=fingerprint(recipe),
    )
    result = EnsembleScores(
        conditions,
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
                **{key: getattr(run.conditions, key) for key in ("seed", "recipe", "selection", "hardware")},
                epoch=run.chosen.get("epoch"),
                chosen_by=run.chosen.get(protocol.select_by),
                seconds=run.seconds,
                scores=single[number],
            )
            for number, run in enumerate(runs)
        ],
        written=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    write_texts(folder, {ENSEMBLE_FILE: json.dumps(dict(result), indent=2, ensure_ascii=False)})


def embed_test_rows(model: PlannedRun, data: RunData) -> Tensor:
    """Embeddings of the test rows (queries, then gallery) with the chosen epoch's weights, on the host.

    They are kept next to the model, in a file named after its weights and the images.
    """
    rows = _test_set(data.protocol).rows
    with open(model.folder.encoder_file, "rb") as weights:
        content_hash = hashlib.file_digest(weights, "sha256")
    content_hash.update("\n".join(data.images.table.ids[row] for row in rows.tolist()).encode())
    file = model.folder.path / f"test_embeddings-{content_hash.hexdigest()[:12]}.npy"
    if file.exists():
        return torch.from_numpy(np.load(file))
    trained = load_run(model.folder.path, device=model.recipe.training.device)
    embeddings = trained.embed(data.images.images, rows).cpu()
    for outdated in model.folder.path.glob("test_embeddings-*.npy"):
        outdated.unlink()
    content = io.BytesIO()
    np.save(content, embeddings.numpy())
    write_atomically(file, content.getvalue())
    return embeddings


def _check_same_test(models: Sequence[PlannedRun], splits: Sequence[RunData]) -> None:
    """Embeddings can only be concatenated where they are of the same images."""
    tested = [[data.images.digests[row] for row in _test_set(data.protocol).rows.tolist()] for data in splits]
    for model, images in zip(models, tested, strict=True):
        if images != tested[0]:
            raise DataError(
                f"{model.folder.path} was not tested on the images of {models[0].folder.path}, so their embeddings "
                f"cannot be concatenated: start again in another folder with -o"
            )


def _scores(embeddings: Tensor, protocol: Protocol, recipe: Recipe) -> dict[str, float]:
    """R@1, P@R and MAP@R of embedded test rows."""
    test, labels = _test_set(protocol), protocol.table.labels
    vectors, queries = embeddings.to(pick_device(recipe.training.device)), len(test.query)
    gallery = () if test.gallery is None else (vectors[queries:], labels[test.gallery])
    distance: Distance = "cosine" if recipe.encoder.normalisation == "l2" else "euclidean"
    scores = retrieval_scores(vectors[:queries], labels[test.query], *gallery, scores=METRICS, distance=distance)
    return {name: scores[name] for name in METRICS}


def _test_set(protocol: Protocol) -> EvaluationSet:
    assert protocol.test is not None, "check_trainable comes first"
    return protocol.test


def mlrc_table(result: EnsembleScores) -> Table:
    """Scores in per cent, mean ± half of the interval where there is one."""
    conditions = result.conditions
    method = "" if conditions.method == "plain" else f" with {conditions.method}"
    cells, records = [], []
    for what, dim in (("separate", result.dim), ("concatenated", result.concatenated_dim)):
        scores = getattr(result, what)
        cells.append([what, str(dim), *(_interval_text(scores[name]) for name in METRICS)])
        records += [{"what": what, "dim": dim, "metric": name, **scores[name].as_record()} for name in METRICS]
    part = Part.of(["score (%)", "dimensions", *METRICS], cells)
    title = f"MLRC on {conditions.data}: {conditions.objective}{method}, {conditions.test_classes}"
    return Table(title, (part,), tuple(_conditions(result)), records=tuple(records))


def _interval_text(value: Statistic) -> str:
    """``mean ± half of the interval`` in per cent; one repeat has no interval."""
    half = None if value.interval is None else 50 * (value.interval[1] - value.interval[0])
    return Statistic(100 * value.mean, half).text(2)


def _conditions(result: EnsembleScores) -> list[str]:
    """What the scores hold for: protocol, selection, seeds, hardware; and how they were made."""
    shared, folds, repeats, seeds = result.conditions, result.folds, result.repeats, result.seeds
    parts = [
        f"{shared.protocol} protocol, {shared.selection}",
        f"{folds} folds, {counted(repeats, 'repeat')}, seeds {seeds[0]}–{seeds[-1]}",
        *filter(None, (shared.training_conditions, shared.weights)),
        shared.hardware,
        f"recipe {shared.recipe}",
    ]
    made = f"Separate: mean of the {folds} models of a repeat. Concatenated: their embeddings concatenated"
    if repeats == 1:
        return ["; ".join(parts) + ".", f"{made}. One repeat has no confidence interval."]
    scored, possible = result.combinations.scored, result.combinations.possible
    which = f"all {possible:,}" if scored == possible else f"{scored:,} drawn from the {possible:,}"
    reading = (
        f"{made}, mean over {which} combinations of one repeat per fold. ± is half of the 95 % confidence interval of "
        f"the mean: Student's t over repeats, and for combinations over the models in them."
    )
    return ["; ".join(parts) + ".", reading]
