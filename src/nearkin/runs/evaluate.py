"""Score trained runs again, on their own data or on others, and backbones without any training."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from nearkin import ranks
from nearkin.data.cache import OpenedImages, Progress
from nearkin.data.folder import ClassFolders
from nearkin.data.source import is_benchmark
from nearkin.encoders.architectures import default_weights
from nearkin.errors import DataError
from nearkin.evaluation.protocol import EvaluationSet, Protocol, as_tested
from nearkin.evaluation.reranking import Rerank
from nearkin.evaluation.retrieval import concatenate_embeddings
from nearkin.recipe import ProtocolSection
from nearkin.runs.data import SCORED, Announce, describe_data, open_data, open_run_data
from nearkin.runs.folder import pretrained_recipe
from nearkin.runs.model import check_compatible
from nearkin.runs.scores import EvaluationResult
from nearkin.runs.trained_run import TrainedRun, images_trained_on, load_run
from nearkin.training.build import data_of, encoder_from, eval_transform_of
from nearkin.training.device import autocast_dtype, describe_hardware, float32_products, pick_device
from nearkin.training.embedding import embed_images
from nearkin.training.recipe_check import load_recipe


@ranks.joined()
def evaluate_run(
    path: str | Path,
    *,
    data: str | None = None,
    data_root: str | Path | None = None,
    class_folders: ClassFolders | None = None,
    which: str = "best",
    device: str | None = None,
    flip: bool | None = None,
    eval_size: int | None = None,
    also: Sequence[str | Path] = (),
    rerank: Rerank | None = None,
    progress: Progress | None = None,
    announce: Announce | None = None,
) -> EvaluationResult:
    """Scores of a run's encoder on its own test classes, or on ``data``.

    The run's own test images are those of ``split.csv`` that still exist; images added later are left out. If the run
    was trained on images or classes of ``data``, ``note`` says so and ``trained_on`` counts them.

    Args:
        path: a run folder.
        data: a folder with one folder per class, a manifest or a benchmark; default: the run's own test classes.
        data_root: the folder that holds the benchmarks.
        class_folders: which folders of ``data`` are the classes (:func:`~nearkin.data.folder.read_folder`).
        which: as ``device``, ``flip`` and ``eval_size`` for :func:`~nearkin.runs.trained_run.load_run`.
        device: where to compute.
        flip: whether an embedding is averaged with the mirror image's.
        eval_size: side of the crops in pixels.
        also: further runs, whose embeddings are concatenated with those of the first.
        rerank: orders every ranking again by common neighbours among all test images.
        progress: called while images are decoded.
        announce: called with a report on ``data`` before they are scored.
    """
    runs = [load_run(one, which=which, device=device, flip=flip, eval_size=eval_size) for one in (path, *also)]
    run = runs[0]
    check_compatible([one.encoder.distance for one in runs], [data_of(one.recipe).shorter_side for one in runs])
    if data is None:
        stored = ranks.first_on_each_machine(
            lambda: open_run_data(run.folder, run.recipe, data_root=data_root, progress=progress, scored=SCORED[1:])
        )
        opened, protocol, part = stored.images, stored.protocol, stored.protocol.test
    else:
        section = replace(
            data_of(run.recipe), source=data, class_folders=class_folders or run.recipe.data.class_folders
        )
        section = section if data_root is None else replace(section, root=str(data_root))
        opened = ranks.first_on_each_machine(lambda: open_data(section, progress=progress))
        protocol, part = _test_part(run.recipe.protocol, opened)
    if part is None:
        raise DataError(_nothing_to_score(run, opened.table.name))
    if data is not None and announce is not None:
        announce(describe_data(opened, {"scored": part.rows}, compare=not is_benchmark(data)))

    def embed(rows: NDArray[np.int64]) -> Tensor:
        parts = [one.embed(opened.images, rows, together=True) for one in runs]
        if len(parts) == 1:
            return parts[0]
        joined = concatenate_embeddings(parts, normalisation=run.encoder.normalisation)
        return joined.div(len(parts) ** 0.5)

    scores = protocol.score(part, embed, distance=run.encoder.distance, final=True, rerank=rerank)
    trained_on = None if data is None else _trained_on(run, opened, part)
    notes = [] if trained_on is None else [_note(trained_on, opened, part)]
    for other in runs[1:]:  # these may have been trained on what the first was tested on
        if note := _note(_trained_on(other, opened, part), opened, part):
            notes.append(f"of {other.folder.path}: {note}")
    conditions = [as_tested("", run.recipe.protocol)]
    if also:
        conditions.append(
            f"embeddings concatenated with those of {', '.join(str(one.folder.path) for one in runs[1:])}"
        )
    if rerank is not None:
        conditions.append(str(rerank))
    return EvaluationResult(
        run=str(path),
        checkpoint=which,
        data=opened.table.name,
        images=len(part.query),
        classes=len(np.unique(opened.table.labels[part.query])),
        trained_on=trained_on,
        hardware=describe_hardware(run.device),
        note="; ".join(filter(None, notes)) or None,
        conditions="; ".join(filter(None, conditions)) or None,
        scores=ranks.from_first(lambda: scores),
    )


def evaluate_backbone(
    backbone: str,
    data: str,
    *,
    weights: str | Path | None = None,
    overrides: Iterable[str] = (),
    data_root: str | Path | None = None,
    class_folders: ClassFolders | None = None,
    device: str | None = None,
    progress: Progress | None = None,
    watch: Callable[[str, int, int], None] | None = None,
    announce: Announce | None = None,
) -> EvaluationResult:
    """Scores of a backbone's pooled features, without a head, on the test split of ``data`` or on all of it.

    Images are treated as in training on own photos.

    Args:
        backbone: a name as in recipes.
        data: a folder with one folder per class, a manifest or a benchmark.
        weights: a local file; None for those that come with the backbone.
        overrides: changes to the recipe for own photos, such as ``data.image_size=160`` or ``encoder.pooling=avg``.
        data_root: the folder that holds the benchmarks.
        class_folders: which of a folder's folders are the classes (:func:`~nearkin.data.folder.read_folder`).
        device: where to compute; default: the best there is.
        progress: called while images are decoded.
        watch: called with what is being scored, the number of images done, and their total.
        announce: called with a report on the data before they are scored.
    """
    known = None if ":" in backbone else default_weights(backbone) or "imagenet"
    start = known if weights is None else str(weights)
    changes = {"encoder.backbone": backbone, "encoder.weights": start, "encoder.dim": None, "data.source": data}
    changes |= {"data.root": None if data_root is None else str(data_root), "data.class_folders": class_folders}
    written = [f"{key}={json.dumps(value)}" for key, value in changes.items()]
    recipe = load_recipe(pretrained_recipe(backbone), [*written, *overrides])
    with ranks.joined(), float32_products(recipe.training.precision):
        torch_device = pick_device(device or recipe.training.device)
        encoder = encoder_from(recipe.encoder).to(torch_device)
        opened = ranks.first_on_each_machine(lambda: open_data(data_of(recipe), progress=progress))
        protocol, part = _test_part(recipe.protocol, opened)
        assert part is not None
        if announce is not None:
            announce(describe_data(opened, {"scored": part.rows}, compare=not is_benchmark(data)))

        def embed(rows: NDArray[np.int64]) -> Tensor:
            def show(done: int) -> None:
                if watch is not None:
                    watch("scoring the backbone", done, len(rows))

            show(0)
            return embed_images(
                encoder,
                opened.images,
                eval_transform_of(recipe),
                rows=rows,
                batch_size=recipe.training.evaluation_batch_size,
                workers=recipe.data.workers,
                device=torch_device,
                dtype=autocast_dtype(recipe.training.precision, torch_device),
                progress=show,
                flip=recipe.protocol.flip,
                together=True,
            )

        scores = protocol.score(part, embed, distance=encoder.distance, final=True)
        return EvaluationResult(
            backbone=backbone,
            weights=str(encoder.weights_report or ("its own" if ":" in backbone else "none, random numbers")),
            data=opened.table.name,
            images=len(part.query),
            classes=len(np.unique(opened.table.labels[part.query])),
            hardware=describe_hardware(torch_device),
            conditions=as_tested("", recipe.protocol) or None,
            scores=ranks.from_first(lambda: scores),
        )


def _test_part(section: ProtocolSection, opened: OpenedImages) -> tuple[Protocol, EvaluationSet | None]:
    """The test split of data that have one, or all images."""
    table = opened.table
    if np.isin(table.splits, ("test", "query")).any():
        # A final model's protocol has no test classes.
        name = "conventional" if section.name == "everything" else section.name
        protocol = Protocol(replace(section, name=name), table)
        return protocol, protocol.test
    every_row = EvaluationSet(np.arange(len(table), dtype=np.int64))
    return Protocol(replace(section, test_share=0.0), table), every_row


def _trained_on(run: TrainedRun, opened: OpenedImages, part: EvaluationSet) -> dict[str, int]:
    """How many of the scored images and classes trained the run; a class is recognised by its name or an image."""
    if images_trained_on(run) == frozenset():
        return {"images": 0, "classes": 0}
    split, table, rows = run.folder.split, opened.table, np.unique(part.rows)
    images = [row for row in rows.tolist() if opened.digests[row] in split.trained]
    labels = np.unique(table.labels[rows]).tolist()
    classes = {label for label in labels if table.class_names[label] in split.trained_classes}
    return {"images": len(images), "classes": len(classes | set(table.labels[images].tolist()))}


def _note(trained_on: Mapping[str, int], opened: OpenedImages, part: EvaluationSet) -> str | None:
    rows = np.unique(part.rows)
    images, classes = len(rows), len(np.unique(opened.table.labels[rows]))
    if trained_on["images"] == images:
        return "it was trained on these very images, so this says nothing about new ones"
    if not trained_on["classes"]:
        return None
    return (
        f"it was trained on {trained_on['images']:,} of these {images:,} images, and on {trained_on['classes']:,} of "
        f"these {classes:,} classes, so this is no score on classes never seen"
    )


def _nothing_to_score(run: TrainedRun, data: str) -> str:
    if run.recipe.protocol.name != "everything":
        return f"{data!r} has no test classes: give others with --data"
    score = ""
    if run.folder.is_finished and (final_of := run.folder.scores().final_of):
        test = final_of.scores.test or {}
        shown = ", ".join(f"{name} {100 * test[name]:.1f}" for name in ("R@1", "MAP@R") if name in test)
        score = f" Its score is that of {final_of.run}, on classes new to that: {shown}." if shown else ""
    return (
        f"{run.folder.path} was trained on every class of {data!r}.{score} Score it on images of other classes with "
        f"--data FOLDER"
    )
