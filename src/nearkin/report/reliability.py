"""How far confidences can be believed: what was said of hits, and how often it was right; of an index, or of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from nearkin.index.calibration import Calibration, fit, fit_on_others
from nearkin.report.figure_style import GREY, RUN_COLOURS, STYLE, new_figure, save_figure
from nearkin.report.formats import counted
from nearkin.report.opened_run import IMAGE_LIMIT, CannotDrawError, OpenedRun, Sample
from nearkin.runs.model import HeldOut


def reliability_of_run(run: OpenedRun) -> Calibration:
    """The curve that a run's own classes give, measured on test classes that it was not fitted to.

    Validation classes give the curve where the protocol holds some out, moved to as many classes as the test has, which
    measures it. Elsewhere the test classes do both: a part of them is scored by a curve from the others, as an index of
    the run has it.
    """
    distance = run.trained.encoder.distance
    validation = run.protocol.validation
    test = None if run.protocol.test is None else run.test_sample
    held = None if validation is None else run.sample(validation.rows, IMAGE_LIMIT)
    if held is not None and test is not None:
        source = f"{_words(run, held, 'validation')}; scored on {_words(run, test, 'test')}"
        found = fit_on_others(_held_out(held), _held_out(test), distance, source)
        if found is not None:
            return found
    sample, part = (test, "test") if test is not None else (held, "validation")
    if sample is None:
        raise CannotDrawError("the run has no test classes")
    source = f"{_words(run, sample, part)}; each scored by a curve from other classes than its own"
    found = fit(_held_out(sample).vectors, sample.labels, distance, source)
    if found is None:
        raise CannotDrawError(f"hits among the {part} images are too few, or all alike, to learn a confidence from")
    return found


def draw_reliability(file: Path, calibration: Calibration) -> None:
    """Write the reliability curve of ``calibration`` with, below it, how many hits stand behind each dot."""
    import matplotlib

    with matplotlib.rc_context(STYLE):
        figure = new_figure(4.6, 5.2)
        draw_curve(figure, calibration)
        figure.supxlabel(f"learned from {calibration.source}", fontsize=7, color=GREY)
        save_figure(figure, file, dpi=130)


def draw_curve(figure: Any, calibration: Calibration, colour: str = RUN_COLOURS[0]) -> None:
    """How often hits of each confidence were right and, below, how many there were."""
    curve, counts = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    said = [100 * each.confidence for each in calibration.reliability]
    right = [100 * each.right for each in calibration.reliability]
    curve.plot([0, 100], [0, 100], color=GREY, linestyle="--", linewidth=1, label="as often as said")
    curve.plot(said, right, color=colour, marker="o", label="hits on kinds not fitted to")
    curve.set(ylabel="were right (%)", xlim=(0, 100), ylim=(0, 100))
    curve.set_title(f"Brier score {calibration.brier:.3f}, {calibration.brier_of_share:.3f} if all were given the same")
    curve.legend(loc="upper left")
    counts.bar(said, [each.hits for each in calibration.reliability], width=6, color=colour)
    counts.set(xlabel="said to be of the query's kind (%)", ylabel="hits")


def _held_out(sample: Sample) -> HeldOut:
    return HeldOut(sample.embeddings.numpy(), sample.labels)


def _words(run: OpenedRun, sample: Sample, part: str) -> str:
    """``1,200 images of 50 test classes``, and whether training has seen them."""
    kinds = np.unique(sample.labels)
    seen = " seen in training" if np.isin(kinds, run.training_classes).any() else ""
    return f"{counted(len(sample.labels), 'image')} of {counted(len(kinds), f'{part} class')}{seen}"
