"""Rows of stored runs compared with each other: difference, 95 % interval, and how many more seeds would decide it.

    python benchmarks/differences.py cub/compare-batch120 vcpa:proxy_anchor profs:contrastive
    python benchmarks/differences.py cub/long --group "30 epochs, batch 120" proxy_isa:proxy_anchor
    python benchmarks/differences.py cub/reality-check --across-groups c2_ccp:c2
    python benchmarks/differences.py cub/isa cub/head-init --group "16 epochs, batch 120" head_init-pca:proxy_anchor
    python benchmarks/differences.py cub/best cub/best-wide --together dim-2048:crop_scale-0.25

For studies in ``results/``, each named DATA/STUDY, several taken as one; of folders ``nearkin compare`` says the same.
Seeds are paired where both rows have the same, and so are groups, such as folds, with ``--across-groups``. Of runs with
the same row and seed the last counts, or with ``--across-studies`` one of each study; where such runs are rather one
than several, ``--by-seed`` averages them first.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from nearkin.evaluation.statistics import difference_by_seed
from nearkin.report.differences import Comparison, differences_part, how_to_read
from nearkin.report.table import markdown_table

RESULTS = Path(__file__).parents[1] / "results"
SCORES = ("R@1", "MAP@R")


def study(name: str) -> list[dict[str, Any]]:
    """The runs of a study in ``results/``, named DATA/STUDY."""
    every = [json.loads(line) for file in sorted(RESULTS.rglob("*.jsonl")) for line in file.open(encoding="utf-8")]
    found = [run for run in every if f"{run['data']}/{run['study']}" == name]
    if not found:
        known = sorted({f"{run['data']}/{run['study']}" for run in every})
        raise SystemExit(f"no study {name!r} in results/: there are {', '.join(known)}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("given", nargs="+", metavar="DATA/STUDY|ROW:BASE", help="studies, and names of rows")
    parser.add_argument("--group", action="append", help="only runs of this group; again for another")
    parser.add_argument("--across-groups", action="store_true", help="a run of each group counts as a seed of its own")
    parser.add_argument("--across-studies", action="store_true", help="and so does a run of each study")
    parser.add_argument("--by-seed", action="store_true", help="those of one seed are averaged first")
    parser.add_argument("--together", action="store_true", help="all pairs as one")
    parser.add_argument("--last", action="store_true", help="the last epoch instead of the reported one")
    arguments = parser.parse_intermixed_args()
    names = [name for name in arguments.given if ":" not in name]
    pairs = [name for name in arguments.given if ":" in name]
    if not names or not pairs:
        parser.error("at least one study, DATA/STUDY, and one ROW:BASE are needed")
    runs = [(place, run) for place, name in enumerate(names) for run in study(name)]
    groups = list(dict.fromkeys(run.get("group") for _, run in runs))
    rows: dict[str, dict[Any, dict[str, float]]] = {}
    for place, run in runs:
        if arguments.group is None or run.get("group") in arguments.group:
            group = groups.index(run.get("group")) * arguments.across_groups
            seed = (place * arguments.across_studies, group, run["seed"])
            rows.setdefault(run["row"], {})[seed] = run["last" if arguments.last else "test"]
    if arguments.by_seed:
        rows = {name: averaged_by_seed(each) for name, each in rows.items()}
    named: list[list[str]] = []
    for pair in pairs:
        row, _, base = pair.partition(":")
        if row not in rows or base not in rows:
            raise SystemExit(f"no rows {pair!r}, written ROW:BASE, in {', '.join(names)}: there are {', '.join(rows)}")
        named.append([row, base])
    if arguments.together:
        both = list(zip(*named, strict=True))  # all rows, all bases
        named = [[", ".join(side) for side in both]]
        for name, side in zip(named[0], both, strict=True):
            rows[name] = {(place, seed): run for place, of in enumerate(side) for seed, run in rows[of].items()}
    held = []
    for row, base in named:
        sides = [{name: {seed: each[name] for seed, each in rows[of].items()} for name in SCORES} for of in (row, base)]
        apart = {name: difference_by_seed(sides[0][name], sides[1][name]) for name in SCORES}
        held.append(Comparison(row, base, {name: each for name, each in apart.items() if each is not None}))
    part = differences_part(held)
    print(markdown_table([part.columns, *(line.cells for line in part.lines)], is_number=part.is_number))
    print(how_to_read(held) or "One run a row has no interval.")


def averaged_by_seed(runs: dict[Any, dict[str, float]]) -> dict[Any, dict[str, float]]:
    by_seed: dict[int, list[dict[str, float]]] = {}
    for (_, _, seed), scores in runs.items():
        by_seed.setdefault(seed, []).append(scores)
    return {
        seed: {name: statistics.fmean(each[name] for each in several) for name in SCORES}
        for seed, several in by_seed.items()
    }


if __name__ == "__main__":
    main()
