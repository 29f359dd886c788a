"""A backbone scored as it comes, without any training: what a trained encoder has to beat."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from nearkin import ranks
from nearkin.data.folder import ClassFolders
from nearkin.data.source import is_benchmark
from nearkin.evaluation.protocol import EvaluationSet, Protocol, as_tested
from nearkin.recipe import Recipe
from nearkin.runs.data import Progress, open_data
from nearkin.runs.data_report import Announce, describe_data
from nearkin.runs.scores import Evaluated
from nearkin.training.build import data_of, encoder_from, eval_transform_of
from nearkin.training.device import autocast_dtype, describe_hardware, float32_products, pick_device
from nearkin.training.embedding import embed_images, embedded_by_all
from nearkin.training.recipes import load_recipe


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
) -> Evaluated:
    """Scores of a backbone's pooled features, without a head, on the test split of ``data`` or on all of it.

    Images and features are treated as in training on own photos, so that the scores can be held against such a run.

    Args:
        backbone: a name as in recipes.
        data: a folder with one folder per class, a manifest or a benchmark.
        weights: a local file; None for those that come with the backbone.
        overrides: changes to the recipe for own photos, such as ``data.image_size=160`` or ``encoder.pooling=avg``.
        data_root: folder that holds the benchmarks.
        class_folders: which of a folder's folders are the classes (:func:`~nearkin.data.folder.read_folder`).
        device: where to compute; default: the best there is.
        progress: told how far the decoding of images has come.
        watch: told what is being scored, how many images are done, and how many there are.
        announce: told what was understood of the data.
    """
    brings_its_own = ":" in backbone
    given = None if weights is None and brings_its_own else str(weights or "imagenet")
    changes = [f"encoder.backbone={json.dumps(backbone)}", f"encoder.weights={json.dumps(given)}", "encoder.dim=null"]
    changes += [f"data.source={json.dumps(data)}"]
    changes += [] if data_root is None else [f"data.root={json.dumps(str(data_root))}"]
    changes += [] if class_folders is None else [f"data.class_folders={class_folders}"]
    recipe = load_recipe("own_photos/pretrained", [*changes, *overrides])
    with ranks.joined():
        return _score(recipe, data, device, progress, watch, announce)


def _score(
    recipe: Recipe,
    data: str,
    device: str | None,
    progress: Progress | None,
    watch: Callable[[str, int, int], None] | None,
    announce: Announce | None,
) -> Evaluated:
    backbone = recipe.encoder.backbone
    where = pick_device(device or recipe.training.device)
    encoder = encoder_from(recipe.encoder).to(where)
    opened = ranks.first_on_each_machine(lambda: open_data(data_of(recipe), progress=progress))
    table, transform = opened.table, eval_transform_of(recipe)
    protocol = Protocol(recipe.protocol, table)
    part = EvaluationSet(np.arange(len(table), dtype=np.int64))
    if protocol.test is not None and any(table.has_split(name) for name in ("test", "query")):
        part = protocol.test
    if announce is not None:
        announce(describe_data(opened, {"scored": part.rows}, compare=not is_benchmark(data)))

    def embed(rows: NDArray[np.int64]) -> Tensor:
        if watch is not None:
            watch("scoring the backbone", 0, len(rows))
        return embedded_by_all(
            lambda own, told: embed_images(
                encoder,
                opened.images,
                transform,
                rows=own,
                batch_size=recipe.training.evaluation_batch_size,
                workers=recipe.data.workers,
                device=where,
                dtype=autocast_dtype(recipe.training.precision, where),
                progress=told,
                flip=recipe.protocol.flip,
            ),
            rows,
            None if watch is None else lambda done: watch("scoring the backbone", done, len(rows)),
        )

    with float32_products(recipe.training.precision):
        scores = protocol.score(part, embed, distance=encoder.distance, final=True)
    scores = ranks.from_first(lambda: scores)
    return Evaluated(
        backbone=backbone,
        weights=str(encoder.weights_report or ("its own" if ":" in backbone else "none, random numbers")),
        data=table.name,
        images=len(part.query),
        classes=len(np.unique(table.labels[part.query])),
        hardware=describe_hardware(where),
        conditions=as_tested("", recipe.protocol) or None,
        scores=scores,
    )
