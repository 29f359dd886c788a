"""Scores and curves of runs into a file of results/, a line each, which docs/results.md and benchmarks/ refer to.

    python tools/keep_runs.py results/cub/2026-11-16-isa.json --group "16 epochs" runs/compare/proxy_isa/seed-*
    python tools/keep_runs.py FILE --group "fold 1" --row ms runs/a

A run's row is the folder above it, as in a study, or what ``--row`` says. Runs are added to those of the file; one
whose group, row and seed it has already is refused. Weights and pictures are not kept.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from nearkin.errors import NearkinError
from nearkin.runs.folder import RunFolder

CURVE = ("epoch", "step", "loss", "R@1", "MAP@R")
"""Of each evaluation."""


def entry(path: Path, group: str, row: str | None = None) -> dict[str, Any]:
    """What is kept of a run."""
    folder = RunFolder(path)
    curve = [{key: each[key] for key in CURVE if key in each} for each in folder.evaluations()]
    name = row or path.resolve().parent.name
    return {"group": group, "row": name, **folder.scores(), "evaluations": curve}


def added(kept: list[dict[str, Any]], new: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Both; none twice."""
    names = [(run.get("group"), run.get("row"), run.get("seed")) for run in [*kept, *new]]
    if twice := next((name for place, name in enumerate(names) if place >= len(kept) and name in names[:place]), None):
        group, row, seed = twice
        raise SystemExit(f"row {row!r} with seed {seed} is there already in the group {group!r}; nothing was written")
    return [*kept, *new]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="a JSON file of runs; made where there is none")
    parser.add_argument("runs", nargs="+", type=Path, help="folders of finished runs")
    parser.add_argument("--group", required=True, help="under what conditions they ran, in a few words")
    parser.add_argument("--row", help="their row, where it is not the name of the folder above")
    arguments = parser.parse_args()
    kept = json.loads(arguments.file.read_text(encoding="utf-8")) if arguments.file.is_file() else []
    try:
        new = [entry(run, arguments.group, arguments.row) for run in arguments.runs]
    except NearkinError as error:
        raise SystemExit(f"error: {error}") from error
    lines = ",\n".join(json.dumps(run, ensure_ascii=False) for run in added(kept, new))
    arguments.file.parent.mkdir(parents=True, exist_ok=True)
    arguments.file.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    print(f"{arguments.file}: {len(kept)} runs before, {len(kept) + len(new)} now")


if __name__ == "__main__":
    main()
