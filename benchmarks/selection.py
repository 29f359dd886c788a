"""Whether validation classes put rows in the order of the test classes, by how many classes, splits and which score.

    python benchmarks/selection.py runs/selection/cub-*     (folders of nearkin compare, one for each split)
    python benchmarks/selection.py runs/selection/cub-* --classes 8,15,25 --draws 100 --json selection.json
    python benchmarks/selection.py cub/tuning glyphs/tuning       (studies in results/)

Rows of folders that held out as large a share of the classes are put together: a fold, or a seed of the split, is a
split of its own. Spearman's ρ is of the rows' validation score with their mean test score over all splits and seeds: of
one split (the mean ρ over the splits, each by itself) and of the mean validation score over all splits. The interval is
of 2,000 bootstrap draws of the rows; the lines "R@1 less MAP@R" are the difference of two ρ over the same draws. "lost"
is what the row that validation puts first has less in test R@1 than the best row, in points. With --classes the
validation images are embedded again by the reported weights, and scored in draws of so many of the held-out classes,
the same ones for all rows: what fewer validation classes would have said of the same models. ρ is then the mean over
the draws, the range holds 95 % of them.

Each group of a study in ``results/`` is taken by itself, or as one split of several with --across-groups, or all
together with --pool. Nothing is written unless --json says where.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from differences import study
from scipy.stats import spearmanr

from losses import setting
from nearkin.evaluation.retrieval import retrieval_scores
from nearkin.report.opened_run import OpenedRun, open_runs

SCORES = ("MAP@R", "R@1")
HEADINGS = ("held out", "rows", "splits", "classes", "chosen by", "of", "ρ, test R@1", "ρ, test MAP@R", "lost")
Scores = Mapping[str, float]


@dataclass(frozen=True)
class Run:
    rule: str
    """How validation classes were held out; runs of one rule are compared."""
    row: str
    split: str
    classes: str
    validation: Scores
    test: Scores


def stored_runs(name: str, *, pool: bool, across: bool = False) -> list[Run]:
    """Of a study in ``results/``: those whose epoch was chosen on validation classes."""
    found = []
    for each in study(name):
        if each.get("protocol", "validation") not in ("validation", "mlrc"):
            continue
        group, row = each.get("group", ""), each["row"]
        rule = "stored" if pool else f"{name} {'' if across else group}".strip()
        row = f"{name} {group} {row}" if pool else row
        found.append(Run(rule, row, group if across else "0", "", each["best"], each["test"]))
    return found


def held_out(run: OpenedRun) -> tuple[str, str]:
    """How much is held out, and which part of the classes that is."""
    protocol = run.recipe.protocol
    if protocol.name == "mlrc":
        return f"1/{protocol.folds}", f"fold {protocol.fold}"
    if protocol.name == "validation":
        return f"{protocol.validation_share:.0%}", f"seed {protocol.split_seed}"
    raise SystemExit(f"{run.folder.path}: the {protocol.name} protocol has no validation classes")


def folder_runs(folders: Sequence[Path]) -> list[tuple[Run, OpenedRun]]:
    """The finished runs of studies."""
    paths = [file.parent for folder in folders for file in sorted(folder.glob("*/seed-*/scores.json"))]
    found = []
    for opened in open_runs(paths) if paths else []:
        scores, (rule, split) = opened.folder.scores(), held_out(opened)
        stored = opened.folder.split
        classes = "" if stored is None else str(len(np.unique(stored.labels[stored.splits == "validation"])))
        row = opened.folder.path.parent.name
        found.append((Run(rule, row, split, classes, scores.best or {}, scores.test or {}), opened))
    return found


def by_row(runs: Iterable[Run], what: str, score: str) -> dict[str, float]:
    """The mean of a score over the runs of each row."""
    values: dict[str, list[float]] = {}
    for run in runs:
        values.setdefault(run.row, []).append(float(getattr(run, what)[score]))
    # Rounded, so that means that are equal stay so.
    return {row: round(statistics.fmean(each), 9) for row, each in values.items()}


def correlation(first: Mapping[str, float], second: Mapping[str, float], rows: Sequence[str]) -> float:
    """Spearman's ρ."""
    return float(spearmanr([first[row] for row in rows], [second[row] for row in rows]).statistic)


def described(runs: Sequence[Run], chosen_by: str, draws: int = 2000) -> list[dict[str, Any]]:
    """One split and the mean of all: ρ with both test scores, the same in draws of rows, and what the choice loses."""
    splits = sorted({run.split for run in runs})
    complete = [row for row in by_row(runs, "test", "R@1") if splits_of(runs, row) == splits]
    target = {score: by_row(runs, "test", score) for score in SCORES}
    each = [by_row((run for run in runs if run.split == split), "validation", chosen_by) for split in splits]
    ways = {"one split": each}
    if len(splits) > 1:
        ways[f"mean of {len(splits)}"] = [by_row(runs, "validation", chosen_by)]
    lines = []
    rng = np.random.default_rng(0)
    samples = [[complete[k] for k in rng.integers(0, len(complete), len(complete))] for _ in range(draws)]
    samples = [rows for rows in samples if len(set(rows)) > 2]
    for way, validations in ways.items():
        found: dict[str, Any] = {"rows": len(complete), "splits": len(splits), "chosen_by": chosen_by, "of": way}
        for score in SCORES:
            rho, *drawn = [
                statistics.fmean(correlation(validation, target[score], rows) for validation in validations)
                for rows in (complete, *samples)
            ]
            found |= {f"rho {score}": rho, f"drawn {score}": drawn}
        lines.append(found | {"lost": statistics.fmean(lost(v, target["R@1"], complete) for v in validations)})
    return lines


def with_intervals(found: dict[str, Any]) -> dict[str, Any]:
    """The draws as the range of 95 % of them."""
    ranges = {
        f"interval {score}": np.nanpercentile(found.pop(f"drawn {score}"), [2.5, 97.5]).tolist() for score in SCORES
    }
    return found | ranges


def difference(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """By how much the one chooses better, over the same draws."""
    found = {**first, "chosen_by": f"{first['chosen_by']} less {second['chosen_by']}"}
    for score in SCORES:
        found[f"rho {score}"] = first[f"rho {score}"] - second[f"rho {score}"]
        both = zip(first[f"drawn {score}"], second[f"drawn {score}"], strict=True)
        found[f"drawn {score}"] = [one - other for one, other in both]
    return found | {"lost": first["lost"] - second["lost"]}


def splits_of(runs: Iterable[Run], row: str) -> list[str]:
    return sorted({run.split for run in runs if run.row == row})


def lost(validation: Mapping[str, float], test: Mapping[str, float], rows: Sequence[str]) -> float:
    """Points of test R@1 between the row that validation would choose and the best."""
    return 100 * (max(test[row] for row in rows) - test[max(rows, key=lambda row: validation[row])])


def fewer_classes(
    runs: Sequence[tuple[Run, OpenedRun]], counts: Sequence[int], draws: int
) -> dict[int, list[list[Run]]]:
    """By the number of classes, for each draw the runs with the scores of so many of their validation classes."""
    found: dict[int, list[list[Run]]] = {count: [[] for _ in range(draws)] for count in counts}
    for run, opened in runs:
        part = opened.protocol.validation
        assert part is not None
        labels = opened.data.table.labels[part.query]
        vectors, classes = opened.embed(part.query), np.unique(labels)
        for count in counts:
            for draw in range(draws):
                # A function of the split and the draw, so that all rows are asked the same.
                rng = np.random.default_rng([count, draw, *run.split.encode()])
                chosen = np.isin(labels, rng.choice(classes, min(count, len(classes)), replace=False))
                scores = retrieval_scores(
                    vectors[torch.from_numpy(chosen)],
                    labels[chosen],
                    scores=SCORES,
                    distance=opened.trained.encoder.distance,
                )
                found[count][draw].append(Run(run.rule, run.row, run.split, str(count), scores, run.test))
    return found


def averaged(lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Over draws of classes: means, with each draw's ρ in the place of the bootstrap's."""
    found = dict(lines[0])
    for score in SCORES:
        values = [each[f"rho {score}"] for each in lines]
        found |= {f"rho {score}": float(np.nanmean(values)), f"drawn {score}": values}
    return found | {"lost": statistics.fmean(each["lost"] for each in lines)}


def line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def cells(each: Mapping[str, Any]) -> list[str]:
    rhos = []
    for score in reversed(SCORES):
        low, high = each[f"interval {score}"]
        rhos.append(f"{each[f'rho {score}']:.2f} ({low:.2f} to {high:.2f})")
    words = [str(each[key]) for key in ("held_out", "rows", "splits", "classes", "chosen_by", "of")]
    return [*words, *rhos, f"{each['lost']:.1f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+", help="folders of nearkin compare, or studies in results/ as DATA/STUDY")
    parser.add_argument("--classes", default="", help="also so many validation classes, with commas between")
    parser.add_argument("--draws", type=int, default=50, help="draws of classes; default 50")
    parser.add_argument("--across-groups", action="store_true", help="groups of a study are splits, such as folds")
    parser.add_argument("--pool", action="store_true", help="runs of all studies as one list")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the figures there")
    arguments = parser.parse_args()
    folders = [path for path in map(Path, arguments.paths) if path.is_dir()]
    opened = folder_runs(folders)
    runs = [run for run, _ in opened]
    for name in (name for name in arguments.paths if Path(name) not in folders):
        runs += stored_runs(name, pool=arguments.pool, across=arguments.across_groups)
    if not runs:
        raise SystemExit("no finished run with validation classes was found: name folders of nearkin compare")
    found_with = setting("cuda" if torch.cuda.is_available() else "cpu")
    print("; ".join(f"{key} {value}" for key, value in found_with.items()))
    print(line(HEADINGS), line(["---"] * len(HEADINGS)), sep="\n")
    results = []
    for rule in dict.fromkeys(run.rule for run in runs):
        members = [run for run in runs if run.rule == rule]
        if (rows := len({run.row for run in members})) < 4:
            print(f"{rule}: {rows} rows are too few")
            continue
        counts = [int(count) for count in arguments.classes.split(",") if count]
        fewer = fewer_classes([each for each in opened if each[0].rule == rule], counts, arguments.draws)
        held = "/".join(sorted({run.classes for run in members})) or "–"
        tables = {held: {by: described(members, by) for by in SCORES}}
        for count, drawn in fewer.items():
            each_draw = {by: [described(one, by, draws=0) for one in drawn] for by in SCORES}
            tables[f"{count} drawn"] = {
                by: [averaged(ways) for ways in zip(*each_draw[by], strict=True)] for by in SCORES
            }
        for classes, by_score in tables.items():
            by_map, by_recall = (by_score[by] for by in SCORES)
            apart = [difference(one, other) for one, other in zip(by_recall, by_map, strict=True)]
            for each in (*by_map, *by_recall, *apart):
                results.append(with_intervals({"held_out": rule, "classes": classes, **each}))
                print(line(cells(results[-1])), flush=True)
    if arguments.json:
        text = json.dumps({"setting": found_with, "results": results}, indent=2, ensure_ascii=False)
        arguments.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
