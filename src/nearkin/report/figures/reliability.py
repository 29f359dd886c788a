"""How often hits of each confidence are of the query's class, with the Brier score."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import numpy as np

from nearkin.index.calibration import Calibration, fit, fit_on_others
from nearkin.report.figure_style import (
    GREY,
    RUN_COLOURS,
    STYLE,
    new_figure,
    run_colour,
    run_title,
    save_figure,
    set_title,
)
from nearkin.report.opened_run import IMAGE_LIMIT, CannotDrawError, NothingToShowError, OpenedRun, Sample
from nearkin.report.table import counted
from nearkin.runs.model import HeldOut


def draw_run(run: OpenedRun) -> Any:
    """The reliability curve of the confidences, measured on the run's own classes."""
    figure = _figure(reliability_of_run(run), run_colour(run))
    set_title(figure, "Reliability of the confidences", run_title(run))
    return figure


def draw_reliability(file: Path, calibration: Calibration) -> None:
    """Write the reliability curve of an index's calibration."""
    import matplotlib

    with matplotlib.rc_context(STYLE):
        save_figure(_figure(calibration), file, dpi=130)


def reliability_of_run(run: OpenedRun) -> Calibration:
    """The calibration that a run's own classes give, measured on test classes that it was not fitted to.

    Where the protocol has validation classes, the curve is fitted to them, moved to the number of test classes, and
    measured on those. Elsewhere it is fitted to the test classes: each part of them is scored by a curve from the
    others, as an index of the run does it.
    """
    distance = run.trained.encoder.distance
    validation = run.protocol.validation
    test = None if run.protocol.test is None else run.test_sample
    held_out = None if validation is None else run.sample(validation.rows, IMAGE_LIMIT)
    if held_out is not None and test is not None:
        source = f"{_words(run, held_out, 'validation')}; scored on {_words(run, test, 'test')}"
        calibration = fit_on_others(_held_out(held_out), _held_out(test), distance, source)
        if calibration is not None:
            return calibration
    sample, part = (test, "test") if test is not None else (held_out, "validation")
    if sample is None:
        raise NothingToShowError("the run has no test classes")
    source = f"{_words(run, sample, part)}; each scored by a curve from other classes than its own"
    calibration = fit(_held_out(sample).vectors, sample.labels, distance, source)
    if calibration is None:
        raise CannotDrawError(f"the hits among the {part} images are too few, or all alike, to fit a confidence to")
    return calibration


def _figure(calibration: Calibration, colour: str = RUN_COLOURS[0]) -> Any:
    """How often hits of each confidence were right and, below, how many there were."""
    figure = new_figure(5.2, 6.2)
    curve, counts = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    confidence = [100 * point.confidence for point in calibration.reliability]
    right = [100 * point.right for point in calibration.reliability]
    curve.plot([0, 100], [0, 100], color=GREY, linestyle="--", linewidth=1, label="perfectly calibrated")
    curve.plot(confidence, right, color=colour, marker="o", label="hits on classes not fitted to")
    curve.set(ylabel="of the query's class (%)", xlim=(0, 100), ylim=(0, 100))
    curve.set_title(f"Brier score {calibration.brier:.3f}; {calibration.brier_of_share:.3f} for a constant confidence")
    curve.legend(loc="upper left")
    counts.bar(confidence, [point.hits for point in calibration.reliability], width=6, color=colour)
    counts.set(xlabel="confidence (%)", ylabel="hits")
    figure.supxlabel(textwrap.fill(f"fitted to {calibration.source}", 85), fontsize=7, color=GREY)
    return figure


def _held_out(sample: Sample) -> HeldOut:
    return HeldOut(sample.embeddings.numpy(), sample.labels)


def _words(run: OpenedRun, sample: Sample, part: str) -> str:
    """``1,200 images of 50 test classes``, and whether they were trained on."""
    classes = np.unique(sample.labels)
    seen = " seen in training" if np.isin(classes, run.training_classes).any() else ""
    return f"{counted(len(sample.labels), 'image')} of {counted(len(classes), f'{part} class')}{seen}"
