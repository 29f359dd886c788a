"""How sure hits are said to be, and how often they are right, among few kinds and many.

    python benchmarks/confidence.py runs/demo
    python benchmarks/confidence.py runs/demo --kinds 40 150 521 --json benchmarks/results/…-confidence.json

The curve is fitted to the validation classes of a run and asked about draws of its test classes: as it is, and moved to
the number of kinds in the draw, as an index moves it. A Brier score above that of saying the same of every hit is worth
nothing.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from losses import setting
from nearkin.index.calibration import Calibration, fit_on_others
from nearkin.report.opened_run import open_runs
from nearkin.runs.model import HeldOut


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a run folder whose protocol has validation classes")
    parser.add_argument(
        "--kinds", type=int, nargs="+", default=[20, 40, 78, 150, 300, 521], help="test classes to draw"
    )
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the figures there")
    arguments = parser.parse_args()
    (run,) = open_runs([arguments.run])
    labels, distance = run.data.table.labels, run.trained.encoder.distance
    known, asked = (part.query for part in (run.protocol.validation, run.protocol.test))
    fitted, test = (HeldOut(run.embed(rows).cpu().numpy(), labels[rows]) for rows in (known, asked))
    classes = np.random.default_rng(1).permutation(np.unique(test.labels))
    lines = []
    print(f"{len(fitted.labels):,} images of {len(np.unique(fitted.labels))} validation classes")
    print("kinds  images  right   as fitted: said  Brier   moved: said  Brier   the same for all")
    for count in arguments.kinds:
        mine = np.isin(test.labels, classes[:count])
        drawn = HeldOut(test.vectors[mine], test.labels[mine])
        moved = fit_on_others(fitted, drawn, distance, "")
        still = fit_on_others(fitted, drawn, distance, "", moves=False)
        assert moved is not None
        assert still is not None
        line = {"kinds": min(count, len(classes)), "images": int(mine.sum()), "right": share_right(moved)}
        line |= {"said": said(still), "brier": still.brier, "said moved": said(moved), "brier moved": moved.brier}
        lines.append(line | {"brier of share": moved.brier_of_share, "growth": moved.growth})
        print(
            f"{line['kinds']:5}  {line['images']:6}  {line['right']:5.1%}  {said(still):15.1%}  {still.brier:.3f}"
            f"  {said(moved):11.1%}  {moved.brier:.3f}  {moved.brier_of_share:.3f}"
        )
    if arguments.json is not None:
        told = {"setting": setting("cpu"), "run": str(arguments.run.name), "lines": lines}
        arguments.json.write_text(json.dumps(told, indent=1), encoding="utf-8")


def said(curve: Calibration) -> float:
    return sum(each.hits * each.confidence for each in curve.reliability) / curve.hits


def share_right(curve: Calibration) -> float:
    return sum(each.hits * each.right for each in curve.reliability) / curve.hits


if __name__ == "__main__":
    main()
