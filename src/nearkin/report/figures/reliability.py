"""How often hits and labels of each confidence are right, with the calibration error and the Brier score."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import numpy as np

from nearkin.evaluation.confidence import Confidence, confidence_among
from nearkin.report.figure_style import GREY, RUN_COLOURS, STYLE, new_figure, run_title, save_figure, set_title
from nearkin.report.opened_run import CannotDrawError, NothingToShowError, OpenedRun
from nearkin.report.table import counted


def draw_run(run: OpenedRun) -> Any:
    """The reliability of the confidences, measured on the run's own images that did not train."""
    figure = _figure(reliability_of_run(run))
    set_title(figure, "Reliability of the confidences", run_title(run))
    return figure


def draw_reliability(file: Path, confidence: Confidence) -> None:
    """Write the reliability of an index's confidences."""
    import matplotlib

    with matplotlib.rc_context(STYLE):
        save_figure(_figure(confidence), file, dpi=130)


def reliability_of_run(run: OpenedRun) -> Confidence:
    """The confidences that an index of the run's test images would learn.

    For a run without test images it is an index of the training images and those that were held out of them.
    """
    if run.protocol.test is not None:
        sample = run.test_sample
    elif len(run.protocol.holdout):
        sample = run.sample(np.union1d(run.protocol.train_rows, run.protocol.holdout))
    else:
        raise NothingToShowError("every image of the run trained, so none is left to measure confidences with")
    unseen = np.flatnonzero(~np.isin(sample.rows, run.protocol.train_rows))
    confidence = confidence_among(sample.embeddings.numpy(), sample.labels, unseen, run.trained.encoder.distance)
    if isinstance(confidence, str):
        images = counted(len(unseen), "image")
        raise CannotDrawError(f"no confidences can be learned from {images} that did not train: {confidence}")
    return confidence


def _figure(confidence: Confidence) -> Any:
    """How often answers of each confidence were right."""
    figure = new_figure(5.2, 5.2)
    axes = figure.subplots()
    axes.plot([0, 100], [0, 100], color=GREY, linestyle="--", linewidth=1, label="perfectly calibrated")
    for curve, colour, name in ((confidence.hit, RUN_COLOURS[0], "hits"), (confidence.label, RUN_COLOURS[1], "labels")):
        points = np.array([(100 * bin.confidence, 100 * bin.right) for bin in curve.bins])
        brier = f"Brier {curve.brier:.3f} (guessing {curve.brier_of_constant:.3f})"
        label = f"{name}: calibration error {curve.calibration_error:.3f}, {brier}"
        axes.plot(*points.T, color=colour, marker="o", label=label)
    axes.set(xlabel="confidence (%)", ylabel="right (%)", xlim=(0, 100), ylim=(0, 100))
    axes.legend(loc="upper left", fontsize=7)
    learned = (
        f"learned from {counted(confidence.images, 'image')} of {counted(confidence.classes, 'class')} that the "
        f"encoder was not trained on; measured on classes that each curve was not fitted to"
    )
    figure.supxlabel(textwrap.fill(learned, 85), fontsize=7, color=GREY)
    return figure
