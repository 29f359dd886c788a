"""VCPA's uncertainty: circles round the proxies, and how it goes with the closeness of a class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from nearkin.numerics import l2_normalise
from nearkin.report.figure_style import RUN_COLOURS, class_style, head, new_figure, number
from nearkin.report.figures._maps import Map, class_legend, draw_points, map_words, training_map
from nearkin.report.figures._runs import Drawing, one_by_one, run_title
from nearkin.report.opened_run import OpenedRun


def draw(runs: Sequence[OpenedRun]) -> Drawing:
    """The map with circles of radii σ̄, 2σ̄ and 3σ̄, and σ̄ against how close a class lies together."""
    return one_by_one(runs, _figure)


def circle_scale(found: Map, sigma: NDArray[np.float64]) -> float:
    """Map units per unit of σ̄, one factor for all classes; ``sigma [classes, K]``.

    A map has no unit of its own, so only the proportions of the circles mean something (the paper's figure 9 says no
    more). The factor is such that for the middle class 2σ̄ is the distance within which half of its images lie from
    their centre.
    """
    ratios = []
    for index, label in enumerate(found.classes.tolist()):
        own = found.points[found.labels == label]
        spread = float(np.median(np.linalg.norm(own - np.median(own, axis=0), axis=1)))
        ratios.append(spread / (2.0 * max(float(sigma[index].mean()), 1e-12)))
    positive = [ratio for ratio in ratios if ratio > 0]
    return float(np.median(positive)) if positive else 1.0


def closeness(run: OpenedRun) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """The sampled training classes, of each the median cosine similarity of its images to its mean proxy, and its σ̄."""
    sample, proxies = run.training_sample, run.proxies
    assert proxies is not None, "a run with uncertainty has proxies"
    classes = np.unique(sample.labels)
    unit = l2_normalise(sample.embeddings)
    towards = l2_normalise(proxies.of_classes(classes).mean(1))
    medians = [
        float((unit[torch.from_numpy(sample.labels == label)] @ towards[index]).median())
        for index, label in enumerate(classes.tolist())
    ]
    sigma = run.uncertainty.mean(1).double().numpy()
    return classes, np.array(medians), sigma[np.searchsorted(run.training_classes, classes)]


def correlation_words(similar: NDArray[np.float64], sigma: NDArray[np.float64]) -> str:
    """How closeness and uncertainty of the classes go together; nothing where too few classes tell."""
    if len(sigma) < 3 or not similar.std() or not sigma.std():
        return ""
    return f", correlation {number(float(np.corrcoef(similar, sigma)[0, 1]))}"


def _figure(run: OpenedRun) -> Any:
    from matplotlib.patches import Circle

    every = run.uncertainty.double().numpy()  # first: only vcpa has it
    found = training_map(run)
    sigma = every[np.searchsorted(run.training_classes, found.classes)]
    scale = circle_scale(found, sigma)
    figure = new_figure(11.4, 5.9)
    head(figure, "Uncertainty of the proxies", run_title(run), f"{map_words(found)}; one scale for all circles")
    left, right = figure.subplots(1, 2, width_ratios=(1.7, 1))
    draw_points(left, found, star=70)
    for index, places in enumerate(found.proxies):
        for place, deviation in zip(places, sigma[index], strict=True):
            for times in (1, 2, 3):
                radius = times * scale * float(deviation)
                colour = class_style(index)["color"]
                left.add_patch(Circle(tuple(place), radius, fill=False, color=colour, lw=1.3 - 0.3 * times, alpha=0.9))
    left.autoscale_view()
    left.set_title("Circles of σ̄, 2σ̄ and 3σ̄ round each proxy", fontsize=9)
    classes, similar, means = closeness(run)
    right.scatter(similar, means, s=14, color=RUN_COLOURS[0], alpha=0.7, lw=0)
    right.set_xlabel("median similarity of a class's images to its proxy")
    right.set_ylabel("σ̄ of the class")
    right.set_box_aspect(1)
    right.grid(True)
    right.set_title(f"{len(classes)} training classes{correlation_words(similar, means)}", fontsize=9)
    class_legend(figure, run, found)
    return figure
