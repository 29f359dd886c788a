"""A heat map of the similarities of training images to the proxies of the classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nearkin.losses import ProxyLoss
from nearkin.numerics import l2_normalise
from nearkin.report.figure_style import class_name, new_figure, number, run_title, set_title, shared_title
from nearkin.report.opened_run import NothingToShowError, OpenedRun

CLASSES_SHOWN = 100
IMAGES_PER_CLASS = 3
_MOST_NAMED = 30


@dataclass(frozen=True)
class Similarities:
    """``values [N, classes]`` of images, sorted by class, to classes; ``column [N]`` is that of each image's class."""

    classes: NDArray[np.int64]
    column: NDArray[np.int64]
    values: NDArray[np.float64]


def check(run: OpenedRun) -> None:
    if run.at_proxies.proxies is None:
        raise NothingToShowError(f"{run.label} has no proxies")


def draw_runs(runs: Sequence[OpenedRun]) -> Any:
    """Three images of each class against the proxies (ISA, figure 8), a panel for each run."""
    shown = [(run.at_proxies, similarities(run.at_proxies)) for run in runs]
    columns = 2 if len(shown) == 4 else min(3, len(shown))
    rows = -(-len(shown) // columns)
    figure = new_figure(3.9 * columns + 1.2, 4.3 * rows + 0.7)
    title = "Similarity of training images to the classes' proxies"
    set_title(figure, title, run_title(shown[0][0]) if len(runs) == 1 else shared_title(runs))
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    top = max(float(np.abs(similar.values).max()) for _, similar in shown)
    for axis, (run, similar) in zip(axes, shown, strict=False):
        axis.imshow(similar.values, cmap="RdBu_r", vmin=-top, vmax=top, aspect="auto", interpolation="nearest")
        axis.set_box_aspect(1)
        axis.spines[:].set_visible(True)
        positive = np.arange(len(similar.classes)) == similar.column[:, None]
        means = [number(float(similar.values[mask].mean())) if mask.any() else "–" for mask in (positive, ~positive)]
        name = "" if len(runs) == 1 else f"{run.label}\n"
        axis.set_title(f"{name}mean to the image's class {means[0]}, to others {means[1]}", fontsize=9)
        count = len(similar.classes)
        axis.set_xlabel(f"proxies of {count} classes")
        axis.set_ylabel(f"images, up to {IMAGES_PER_CLASS} of each class")
        axis.set_xticks([])
        axis.set_yticks([])
        if count <= _MOST_NAMED:
            names = [class_name(run, label, 14) for label in similar.classes.tolist()]
            middles = [float(np.flatnonzero(similar.column == column).mean()) for column in range(count)]
            axis.set_xticks(range(count), names, rotation=90, fontsize=6)
            axis.set_yticks(middles, names, fontsize=6)
    for axis in axes[len(shown) :]:
        axis.set_axis_off()
    figure.colorbar(axes[0].images[0], ax=list(axes), fraction=0.03, aspect=35, label="cosine similarity")
    return figure


def similarities(run: OpenedRun) -> Similarities:
    """Cosine similarities of some training images to classes, combined over a class's proxies as the loss does."""
    assert run.proxies is not None, "checked before"
    rng, sample = run.random(), run.training_sample
    classes = np.unique(sample.labels)
    if len(classes) > CLASSES_SHOWN:
        classes = np.sort(rng.choice(classes, CLASSES_SHOWN, replace=False))
    chosen: list[int] = []
    for label in classes.tolist():
        members = np.flatnonzero(sample.labels == label)
        chosen += np.sort(rng.choice(members, min(IMAGES_PER_CLASS, len(members)), replace=False)).tolist()
    embeddings = sample.embeddings[chosen]
    if isinstance(run.objective, ProxyLoss):
        columns = np.searchsorted(run.training_classes, classes)
        values = run.objective.class_similarities(embeddings).numpy()[:, columns]
    else:
        by_proxy = l2_normalise(embeddings) @ l2_normalise(run.proxies.of_classes(classes)).flatten(0, 1).T
        values = by_proxy.view(len(embeddings), len(classes), -1).amax(2).numpy()
    return Similarities(classes, np.searchsorted(classes, sample.labels[chosen]), values.astype(np.float64))
