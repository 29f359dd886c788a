"""Maps of the embedding space: images as points, proxies as stars, both put through the same projection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nearkin.errors import MissingExtraError, require
from nearkin.report.figure_style import class_style, head, new_figure
from nearkin.report.figures._runs import class_name, run_title
from nearkin.report.opened_run import CannotDrawError, OpenedRun, Proxies, Sample

WITH_MAPS = ("map-test", "map-train", "uncertainty")
"""Pictures that hold a map of embeddings."""

_MOST_IN_LEGEND = 48


@dataclass(frozen=True)
class Map:
    """Points ``[N, 2]`` of the images of some classes, and ``[classes, K, 2]`` of their proxies (K = 0: none)."""

    classes: NDArray[np.int64]
    rows: NDArray[np.int64]
    labels: NDArray[np.int64]
    points: NDArray[np.float64]
    proxies: NDArray[np.float64]
    how: str
    """The projection, in words."""


_TRAINING_MAPS: WeakKeyDictionary[OpenedRun, Map] = WeakKeyDictionary()


def training_map(run: OpenedRun) -> Map:
    """Some training classes and their proxies; the second call for a run costs nothing."""
    if run not in _TRAINING_MAPS:
        _TRAINING_MAPS[run] = map_of(run, run.training_sample, run.proxies)
    return _TRAINING_MAPS[run]


def map_of(run: OpenedRun, sample: Sample, proxies: Proxies | None = None) -> Map:
    """As many classes of a sample as a map is to show, with their proxies, put through one projection.

    The classes are the same for every run that shares the data and the seed.
    """
    every = np.unique(sample.labels)
    classes = np.sort(run.random().choice(every, min(run.view.classes, len(every)), replace=False))
    shown = sample.of_classes(classes)
    if len(shown.rows) < 2:
        raise CannotDrawError("a map needs at least two images")
    stars = shown.embeddings.new_empty(len(classes), 0, 1) if proxies is None else proxies.of_classes(classes)
    everything = shown.embeddings if proxies is None else torch.cat([shown.embeddings, stars.flatten(0, 1)])
    points, how = project(everything, seed=run.view.seed)
    images, others = points[: len(shown.rows)], points[len(shown.rows) :]
    return Map(classes, shown.rows, shown.labels, images, others.reshape(*stars.shape[:2], 2), how)


def project(vectors: Tensor, *, seed: int) -> tuple[NDArray[np.float64], str]:
    """Points ``[N, 2]`` for vectors ``[N, D]``, and how they were found.

    Two dimensions are taken as they are. Otherwise t-SNE, or, without scikit-learn, the two principal components.

    >>> project(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), seed=0)
    (array([[1., 0.],
           [0., 1.]]), 'the embedding itself')
    """
    x = vectors.double()
    if x.shape[1] < 2:
        x = torch.nn.functional.pad(x, (0, 2 - x.shape[1]))
    if x.shape[1] == 2:
        return x.numpy(), "the embedding itself"
    if len(x) < 4 or without_tsne():
        return _principal_components(x), "by principal components"
    manifold = require("sklearn.manifold", "plot")
    tsne = manifold.TSNE(perplexity=min(30.0, (len(x) - 1) / 3), init="pca", random_state=seed)
    return np.asarray(tsne.fit_transform(x.float().numpy()), dtype=np.float64), "by t-SNE"


def without_tsne() -> str | None:
    """Why there are no maps by t-SNE here, and what to do about it; None where there are."""
    try:
        require("sklearn.manifold", "plot")
    except MissingExtraError as error:
        return str(error)
    return None


def training_words(found: Map) -> str:
    """What a map of training classes shows."""
    per_class = found.proxies.shape[1]
    proxies = {0: "", 1: " and their proxies"}.get(per_class, f" and their proxies, {per_class} each")
    return f"Training classes{proxies}"


def map_words(found: Map) -> str:
    """What a map shows, and how it was made."""
    return f"Map of {len(found.points):,} images of {len(found.classes)} classes, {found.how}"


def draw_points(axis: Any, found: Map, *, star: float = 190) -> None:
    """Images as points, proxies as stars of the given area, a colour for each class."""
    if found.how == "the embedding itself":
        from matplotlib.patches import Circle

        axis.add_patch(Circle((0, 0), 1.0, fill=False, color="#cccccc", lw=0.8))
    size = float(np.clip(6000 / max(len(found.points), 1), 8, 28))
    for index, label in enumerate(found.classes.tolist()):
        style, own = class_style(index), found.points[found.labels == label]
        axis.scatter(*own.T, s=size, c=style["color"], marker=style["marker"], alpha=0.65, lw=0)
    for index, places in enumerate(found.proxies):
        colour = class_style(index)["color"]
        area = star if len(places) == 1 else star / 2
        axis.scatter(*places.T, s=area, c=colour, marker="*", edgecolors="black", lw=0.9, zorder=3)
    axis.set_xticks([])
    axis.set_yticks([])
    axis.set_aspect("equal", adjustable="datalim")
    for side in axis.spines.values():
        side.set_visible(True)
        side.set_color("#bbbbbb")


def class_legend(figure: Any, run: OpenedRun, found: Map) -> None:
    """The classes' names beside the map, unless they are too many to be found there."""
    from matplotlib.lines import Line2D

    if len(found.classes) > _MOST_IN_LEGEND:
        return
    handles, names = [], []
    for index, label in enumerate(found.classes.tolist()):
        style = class_style(index)
        handles.append(Line2D([], [], ls="none", marker=style["marker"], color=style["color"], markersize=6))
        names.append(class_name(run, label))
    if found.proxies.size:
        handles.append(Line2D([], [], ls="none", marker="*", color="white", mec="black", markersize=11))
        names.append("proxy")
    # A name that begins with an underscore would be left out of the legend.
    names = [f"\u200a{name}" if name.startswith("_") else name for name in names]
    figure.legend(handles, names, loc="outside right center", ncols=1 + len(names) // 26)


def map_figure(run: OpenedRun, found: Map, what: str | None = None) -> Any:
    """One map, of training classes unless told otherwise, with its classes named at the side."""
    # Distances in a map are the same up and across, so a long map gets a low figure rather than empty margins.
    wide, high = np.ptp(np.concatenate([found.points, found.proxies.reshape(-1, 2)]), axis=0)
    height = float(np.clip(6.2 * high / max(wide, 1e-12), 3.6, 6.8))
    figure = new_figure(7.8, height + 0.8)
    head(figure, what or training_words(found), run_title(run), map_words(found))
    axis = figure.subplots()
    draw_points(axis, found)
    class_legend(figure, run, found)
    return figure


def _principal_components(x: Tensor) -> NDArray[np.float64]:
    centred = x - x.mean(0)
    left, values, right = torch.linalg.svd(centred, full_matrices=False)
    kept = min(2, len(values))
    # The sign of a component is arbitrary: the largest loading is made positive, so that a map is not mirrored at will.
    signs = right[:kept].gather(1, right[:kept].abs().argmax(1, keepdim=True)).sign().T
    points = left[:, :kept] * values[:kept] * signs
    return torch.nn.functional.pad(points, (0, 2 - kept)).numpy()
