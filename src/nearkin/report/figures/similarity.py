"""A heat map of the similarities of training images to the proxies of the classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nearkin.losses._proxy import ProxyLoss
from nearkin.numerics import l2_normalise
from nearkin.report.figure_style import head, new_figure, number
from nearkin.report.figures._runs import Drawing, class_name, run_title, shared_title, together
from nearkin.report.opened_run import CannotDrawError, OpenedRun

CLASSES_SHOWN = 100
IMAGES_PER_CLASS = 3
_MOST_NAMED = 30


@dataclass(frozen=True)
class Similarities:
    """``values [N, classes]`` of images, sorted by class, to classes; ``owner [N]`` is each image's own column."""

    classes: NDArray[np.int64]
    owner: NDArray[np.int64]
    values: NDArray[np.float64]

    @property
    def own(self) -> float:
        return float(self.values[np.arange(len(self.owner)), self.owner].mean())

    @property
    def other(self) -> float:
        others = np.arange(len(self.classes)) != self.owner[:, None]
        return float(self.values[others].mean()) if others.any() else float("nan")


def draw(runs: Sequence[OpenedRun]) -> Drawing:
    """Three images of each class against the proxies (ISA, figure 8), a panel for each run."""
    return together(runs, lambda run: (run.at_proxies, similarities(run.at_proxies)), _figure)


def similarities(run: OpenedRun) -> Similarities:
    """Cosine similarities of some training images to the classes they are of, as the loss combines several proxies."""
    if run.proxies is None:
        raise CannotDrawError(f"{run.label} has no proxies")
    rng, sample = run.random(), run.training_sample
    classes = np.unique(sample.labels)
    if len(classes) > CLASSES_SHOWN:
        classes = np.sort(rng.choice(classes, CLASSES_SHOWN, replace=False))
    places: list[int] = []
    for label in classes.tolist():
        own = np.flatnonzero(sample.labels == label)
        places += np.sort(rng.choice(own, min(IMAGES_PER_CLASS, len(own)), replace=False)).tolist()
    embeddings = sample.embeddings[places]
    if isinstance(run.objective, ProxyLoss):
        columns = np.searchsorted(run.training_classes, classes)
        values = run.objective.class_similarities(embeddings).numpy()[:, columns]
    else:
        by_proxy = l2_normalise(embeddings) @ l2_normalise(run.proxies.of_classes(classes)).flatten(0, 1).T
        values = by_proxy.view(len(embeddings), len(classes), -1).amax(2).numpy()
    owner = np.searchsorted(classes, sample.labels[places])
    return Similarities(classes, owner, values.astype(np.float64))


def _figure(found: Sequence[tuple[OpenedRun, Similarities]]) -> Any:
    runs = [run for run, _ in found]
    columns = 2 if len(found) == 4 else min(3, len(found))
    rows = -(-len(found) // columns)
    figure = new_figure(3.9 * columns + 1.2, 4.3 * rows + 0.7)
    title = "Similarity of training images to the classes' proxies"
    head(figure, title, run_title(runs[0]) if len(runs) == 1 else shared_title(runs))
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    top = max(float(np.abs(similar.values).max()) for _, similar in found)
    for axis, (run, similar) in zip(axes, found, strict=False):
        axis.imshow(similar.values, cmap="RdBu_r", vmin=-top, vmax=top, aspect="auto", interpolation="nearest")
        axis.set_box_aspect(1)
        axis.spines[:].set_visible(True)
        name = "" if len(runs) == 1 else f"{run.label}\n"
        axis.set_title(
            f"{name}mean to the own class {number(similar.own)}, to others {number(similar.other)}", fontsize=9
        )
        _name_classes(axis, run, similar)
    for axis in axes[len(found) :]:
        axis.set_axis_off()
    figure.colorbar(axes[0].images[0], ax=list(axes), fraction=0.03, aspect=35, label="cosine similarity")
    return figure


def _name_classes(axis: Any, run: OpenedRun, similar: Similarities) -> None:
    count = len(similar.classes)
    axis.set_xlabel(f"proxies of {count} classes")
    axis.set_ylabel(f"images, up to {IMAGES_PER_CLASS} of each class")
    axis.set_xticks([])
    axis.set_yticks([])
    if count <= _MOST_NAMED:
        names = [class_name(run, label, 14) for label in similar.classes.tolist()]
        middles = [float(np.flatnonzero(similar.owner == column).mean()) for column in range(count)]
        axis.set_xticks(range(count), names, rotation=90, fontsize=6)
        axis.set_yticks(middles, names, fontsize=6)
