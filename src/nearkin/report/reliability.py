"""A picture of how far an index's confidences can be believed: what was said of hits, and how often it was right."""

from __future__ import annotations

from pathlib import Path

from nearkin.index.calibration import Calibration
from nearkin.report.plots._style import GREY, RUN_COLOURS, STYLE, new_figure, save_figure


def draw_reliability(file: Path, calibration: Calibration) -> None:
    """Write the reliability curve of ``calibration`` with, below it, how many hits stand behind each dot."""
    import matplotlib

    said = [100 * each.confidence for each in calibration.reliability]
    right = [100 * each.right for each in calibration.reliability]
    with matplotlib.rc_context(STYLE):
        figure = new_figure(4.6, 5.2)
        curve, counts = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
        curve.plot([0, 100], [0, 100], color=GREY, linestyle="--", linewidth=1, label="as often as said")
        curve.plot(said, right, color=RUN_COLOURS[0], marker="o", label="hits on kinds not fitted to")
        curve.set(ylabel="were right (%)", xlim=(0, 100), ylim=(0, 100))
        curve.set_title(
            f"Brier score {calibration.brier:.3f}, {calibration.brier_of_share:.3f} if all were given the same"
        )
        curve.legend(loc="upper left")
        counts.bar(said, [each.hits for each in calibration.reliability], width=6, color=RUN_COLOURS[0])
        counts.set(xlabel="said to be of the query's kind (%)", ylabel="hits")
        figure.supxlabel(f"learned from {calibration.source}", fontsize=7, color=GREY)
        save_figure(figure, file, dpi=130)
