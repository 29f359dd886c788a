"""Maps of some training classes, with their proxies, and of some test classes."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nearkin.numerics import l2_normalise
from nearkin.report.figure_style import GREY, class_name, class_style, new_figure, number, run_title, set_title
from nearkin.report.opened_run import CannotDrawError, OpenedRun, Proxies, Sample

_MOST_IN_LEGEND = 48


@dataclass(frozen=True)
class Map:
    """Points ``[N, 2]`` of the images of some classes, and ``[classes, K, 2]`` of their proxies (K = 0: none)."""

    classes: NDArray[np.int64]
    rows: NDArray[np.int64]
    labels: NDArray[np.int64]
    points: NDArray[np.float64]
    proxies: NDArray[np.float64]
    projection: str
    """The projection, in words."""
    note: str = ""
    """Why the proxies lie apart from their classes, where they do."""


def draw_run(run: OpenedRun) -> Any:
    """Images as points and proxies as stars: training classes at the left, test classes at the right."""
    at_proxies = run.at_proxies
    training = map_of(at_proxies, at_proxies.training_sample, at_proxies.proxies)
    per_class = training.proxies.shape[1]
    proxies = {0: "", 1: " and their proxies"}.get(per_class, f" and their proxies, {per_class} each")
    shown = [(at_proxies, training, f"Training classes{proxies}")]
    if run.protocol.test is not None:
        shown.append((run, map_of(run, run.test_sample), f"Test: {run.protocol.test_classes}"))
    figure = new_figure(7.4 * len(shown), 6.6)
    panels = figure.subfigures(1, len(shown), squeeze=False)[0]
    for panel, (opened, projected, title) in zip(panels, shown, strict=True):
        draw_points(panel.subplots(), projected)
        class_legend(panel, opened, projected)
        panel.suptitle(f"{title}\n{map_words(projected)}", fontsize=9)
        panel.supxlabel(textwrap.fill(projected.note, 110), fontsize=7, color=GREY)
    set_title(figure, run_title(at_proxies))
    return figure


def map_of(run: OpenedRun, sample: Sample, proxies: Proxies | None = None) -> Map:
    """Some classes, the same for every run that shares data and seed, with their proxies, in one projection."""
    every = np.unique(sample.labels)
    classes = np.sort(run.random().choice(every, min(run.view.classes, len(every)), replace=False))
    shown = sample.of_classes(classes)
    if len(shown.rows) < 2:
        raise CannotDrawError("a map needs at least two images")
    stars = shown.embeddings.new_empty(len(classes), 0, 1) if proxies is None else proxies.of_classes(classes)
    everything = shown.embeddings if proxies is None else torch.cat([shown.embeddings, stars.flatten(0, 1)])
    points, projection = project(everything, seed=run.view.seed)
    images, others = points[: len(shown.rows)], points[len(shown.rows) :]
    note = "" if proxies is None else distance_note(shown.embeddings, shown.labels, stars)
    return Map(classes, shown.rows, shown.labels, images, others.reshape(*stars.shape[:2], 2), projection, note)


def distance_note(embeddings: Tensor, labels: NDArray[np.int64], proxies: Tensor) -> str:
    """Why proxies ``[classes, K, dim]`` lie apart from their classes; empty where they do not."""
    to_images, to_proxies = [], []
    for label, of_class in zip(np.unique(labels), proxies, strict=True):
        unit = l2_normalise(embeddings[torch.from_numpy(labels == label)])
        pairs = unit @ unit.T
        to_images += pairs[~torch.eye(len(unit), dtype=torch.bool)].tolist()
        to_proxies += (unit @ l2_normalise(of_class).T).amax(1).tolist()
    if not to_images or np.mean(to_images) <= np.mean(to_proxies):
        return ""
    return (
        f"Proxies lie apart from their classes: the cosine similarity of an image to others of its class is "
        f"{number(np.mean(to_images))} on average, to its nearest proxy {number(np.mean(to_proxies))}. The loss asks "
        f"for more similarity to the proxies of the class than to those of others, not for equality."
    )


def project(vectors: Tensor, *, seed: int) -> tuple[NDArray[np.float64], str]:
    """Points ``[N, 2]`` for vectors ``[N, D]``, and how they were found: by t-SNE unless D is 2 or less."""
    from sklearn.manifold import TSNE

    x = vectors.double()
    if x.shape[1] < 2:
        x = torch.nn.functional.pad(x, (0, 2 - x.shape[1]))
    if x.shape[1] == 2:
        return x.numpy(), "the embedding itself"
    tsne = TSNE(perplexity=min(30.0, (len(x) - 1) / 3), init="pca", random_state=seed)
    return np.asarray(tsne.fit_transform(x.float().numpy()), dtype=np.float64), "by t-SNE"


def map_words(projected: Map) -> str:
    """The contents of a map and its projection."""
    return f"Map of {len(projected.points):,} images of {len(projected.classes)} classes, {projected.projection}"


def draw_points(axis: Any, projected: Map, *, star: float = 190) -> None:
    """Images as points, proxies as stars of the given area, a colour for each class."""
    if projected.projection == "the embedding itself":
        from matplotlib.patches import Circle

        axis.add_patch(Circle((0, 0), 1.0, fill=False, color="#cccccc", lw=0.8))
    size = float(np.clip(6000 / max(len(projected.points), 1), 8, 28))
    for index, label in enumerate(projected.classes.tolist()):
        style, points = class_style(index), projected.points[projected.labels == label]
        axis.scatter(*points.T, s=size, c=style["color"], marker=style["marker"], alpha=0.65, lw=0)
    for index, proxies in enumerate(projected.proxies):
        colour = class_style(index)["color"]
        area = star if len(proxies) == 1 else star / 2
        axis.scatter(*proxies.T, s=area, c=colour, marker="*", edgecolors="black", lw=0.9, zorder=3)
    axis.set(xticks=[], yticks=[])
    axis.set_aspect("equal", adjustable="datalim")
    axis.spines[:].set(visible=True, color="#bbbbbb")


def class_legend(figure: Any, run: OpenedRun, projected: Map) -> None:
    """The classes' names at the right of the map, unless there are too many of them."""
    from matplotlib.lines import Line2D

    if len(projected.classes) > _MOST_IN_LEGEND:
        return
    names = [class_name(run, label) for label in projected.classes.tolist()]
    handles = [Line2D([], [], ls="none", **class_style(index), markersize=6) for index in range(len(names))]
    if projected.proxies.size:
        handles.append(Line2D([], [], ls="none", marker="*", color="white", mec="black", markersize=11))
        names.append("proxy")
    # matplotlib leaves a name that begins with an underscore out of the legend.
    names = [f"\u200a{name}" if name.startswith("_") else name for name in names]
    figure.legend(handles, names, loc="outside right center", ncols=1 + len(names) // 26)
