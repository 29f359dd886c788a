"""VCPA's uncertainty: circles around the proxies, and how it depends on the closeness of a class."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from nearkin.numerics import l2_normalise
from nearkin.report.figure_style import RUN_COLOURS, class_style, new_figure, number, run_title, set_title
from nearkin.report.figures.map import Map, class_legend, draw_points, map_of, map_words
from nearkin.report.opened_run import OpenedRun


def draw_run(run: OpenedRun) -> Any:
    """The map with circles of radii σ̄, 2σ̄ and 3σ̄, and σ̄ against how close a class's images are to its proxy."""
    from matplotlib.patches import Circle

    every = run.uncertainty.double().numpy()  # first: only vcpa has it
    projected = map_of(run, run.training_sample, run.proxies)
    sigma = every[np.searchsorted(run.training_classes, projected.classes)]
    scale = circle_scale(projected, sigma)
    figure = new_figure(11.4, 5.9)
    words = f"{map_words(projected)}; one scale for all circles"
    set_title(figure, "Uncertainty of the proxies", run_title(run), words)
    left, right = figure.subplots(1, 2, width_ratios=(1.7, 1))
    draw_points(left, projected, star=70)
    for index, proxies in enumerate(projected.proxies):
        for centre, deviation in zip(proxies, sigma[index], strict=True):
            for times in (1, 2, 3):
                radius = times * scale * float(deviation)
                colour = class_style(index)["color"]
                left.add_patch(Circle(tuple(centre), radius, fill=False, color=colour, lw=1.3 - 0.3 * times, alpha=0.9))
    left.autoscale_view()
    left.set_title("Circles of σ̄, 2σ̄ and 3σ̄ around each proxy", fontsize=9)
    similar, means = closeness(run)
    right.scatter(similar, means, s=14, color=RUN_COLOURS[0], alpha=0.7, lw=0)
    right.set(xlabel="median similarity of a class's images to its proxy", ylabel="σ̄ of the class", box_aspect=1)
    right.grid(True)
    correlation = ""
    if len(means) > 2 and similar.std() and means.std():
        correlation = f", correlation {number(float(np.corrcoef(similar, means)[0, 1]))}"
    right.set_title(f"{len(means)} training classes{correlation}", fontsize=9)
    class_legend(figure, run, projected)
    return figure


def circle_scale(projected: Map, sigma: NDArray[np.float64]) -> float:
    """Map units per unit of σ̄, one factor for all classes; ``sigma [classes, K]``.

    A map has no unit, so only the proportions of the circles have a meaning (as in the paper's figure 9). The factor is
    chosen so that for the median class half of the images lie within 2σ̄ of their centre.
    """
    ratios = []
    for index, label in enumerate(projected.classes.tolist()):
        points = projected.points[projected.labels == label]
        spread = float(np.median(np.linalg.norm(points - np.median(points, axis=0), axis=1)))
        ratios.append(spread / (2.0 * max(float(sigma[index].mean()), 1e-12)))
    positive = [ratio for ratio in ratios if ratio > 0]
    return float(np.median(positive)) if positive else 1.0


def closeness(run: OpenedRun) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Of each sampled training class the median cosine similarity of its images to its mean proxy, and its σ̄."""
    sample, proxies = run.training_sample, run.proxies
    assert proxies is not None, "a run with uncertainty has proxies"
    classes = np.unique(sample.labels)
    unit = l2_normalise(sample.embeddings)
    means = l2_normalise(proxies.of_classes(classes).mean(1))
    images = (unit[torch.from_numpy(sample.labels == label)] for label in classes)
    medians = [float((of_class @ mean).median()) for of_class, mean in zip(images, means, strict=True)]
    sigma = run.uncertainty.mean(1).double().numpy()
    return np.array(medians), sigma[np.searchsorted(run.training_classes, classes)]
