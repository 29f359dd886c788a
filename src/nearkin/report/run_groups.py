"""Runs of a table or report: the runs of study folders, grouped so that seeds of one recipe are together."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nearkin.data.cache import Progress
from nearkin.errors import DataError
from nearkin.recipe import Recipe, deciding, fingerprint
from nearkin.report.differences import ScoredRuns, seed_and_fold
from nearkin.report.opened_run import OpenedRun, ViewOptions, open_runs, source_of
from nearkin.runs.data import notice_changed_images
from nearkin.runs.folder import RunFolder
from nearkin.runs.scores import EnsembleScores

COMPARISON = "comparison.json"
_MOST_NAMED = 3


@dataclass(frozen=True)
class RunGroup(ScoredRuns):
    """Runs of one recipe with different seeds, ordered by seed; under MLRC also with different folds."""

    title: str
    runs: tuple[OpenedRun, ...]
    ensemble: EnsembleScores | None = None
    """The scores that ``nearkin mlrc`` measured for these runs together."""
    base: str | None = None
    """The title of the group that a study compares it with."""

    @property
    def recipe(self) -> Recipe:
        return self.runs[0].recipe

    @property
    def data(self) -> str:
        return self.scores[0].conditions.data if self.scores else Path(self.recipe.data.source).stem


@dataclass(frozen=True)
class Gathered:
    """Groups by their data, and the runs left out with the reasons."""

    by_data: tuple[tuple[RunGroup, ...], ...]
    left_out: tuple[str, ...]

    @property
    def groups(self) -> list[RunGroup]:
        return [group for groups in self.by_data for group in groups]

    @property
    def data(self) -> str:
        return ", ".join(dict.fromkeys(group.data for group in self.groups))


def gather_runs(
    paths: Sequence[str | Path], view: ViewOptions | None = None, *, progress: Progress | None = None
) -> Gathered:
    """Open and group the runs at ``paths``; a study's folder stands for all its runs.

    A run with the recipe and seed of another adds nothing to a spread, so it is left out with a note.
    """
    known: dict[Path, tuple[Path, str | None, EnsembleScores | None]] = {}
    bases: dict[str, str] = {}
    for path in paths:
        ensemble = EnsembleScores.read(path)
        rows = _study_rows(Path(path))
        titles = {row["name"]: row["title"] for row in rows}
        bases |= {row["title"]: titles[row["base"]] for row in rows if row.get("base") in titles}
        for run_path, title in _run_paths(Path(path), titles):
            resolved = run_path.expanduser().resolve()
            first, first_title, first_ensemble = known.get(resolved, (run_path, None, None))
            known[resolved] = (first, first_title or title, first_ensemble or ensemble)
    by_source: dict[tuple[str, object], list[Path]] = {}
    for path, *_ in known.values():
        folder = RunFolder.existing(path)
        by_source.setdefault((source_of(folder.recipe().data), folder.images), []).append(path)
    notice_changed_images(RunFolder(path) for path, *_ in known.values())
    by_data, left_out = [], []
    for same_data in by_source.values():
        families: dict[str, list[OpenedRun]] = {}
        for run in open_runs(same_data, view, progress=progress):
            members = families.setdefault(fingerprint(run.recipe, besides=_free_keys(run.recipe)), [])
            twins = [other for other in members if seed_and_fold(other.recipe) == seed_and_fold(run.recipe)]
            left_out += [f"{run.folder.path}: the same recipe and seed as {twin.folder.path}" for twin in twins]
            members += [] if twins else [run]
        groups = []
        members_of = [sorted(members, key=lambda run: run.recipe.training.seed) for members in families.values()]
        given = [known[members[0].folder.path.expanduser().resolve()] for members in members_of]
        group_titles = _titles([members[0] for members in members_of], [title for _, title, _ in given])
        for title, members, (*_, ensemble) in zip(group_titles, members_of, given, strict=True):
            for run in members:
                run.title = run.label = title.replace("$", r"\$")
            groups.append(RunGroup(title, tuple(members), ensemble, bases.get(title)))
        by_data.append(tuple(groups))
    return Gathered(tuple(by_data), tuple(left_out))


def _run_paths(path: Path, titles: dict[str, str]) -> list[tuple[Path, str | None]]:
    """The run at ``path``, or all runs below it with the titles of their rows, in the order of the study's table."""
    if RunFolder(path).is_begun or not path.is_dir():
        return [(path, None)]
    below = sorted({file.parent for depth in ("*", "*/*") for file in path.glob(f"{depth}/recipe.yaml")})
    if not below:
        raise DataError(f"{str(path)!r} is neither a run folder nor a study: no recipe.yaml in it or two levels below")
    rows = {run: run.relative_to(path).parts[0] for run in below}
    order = [*titles, *rows.values()]
    return [(run, titles.get(rows[run])) for run in sorted(below, key=lambda run: order.index(rows[run]))]


def _study_rows(folder: Path) -> list[dict[str, Any]]:
    """The rows of a study's table; none for another folder."""
    file = folder / COMPARISON
    if not file.exists():
        return []
    try:
        rows = json.loads(file.read_text(encoding="utf-8"))["rows"]
        return [{**row, "name": row["name"], "title": row["title"]} for row in rows]
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{file} cannot be read: {error!r}. Run nearkin compare again to write it") from error


def _titles(runs: Sequence[OpenedRun], given: Sequence[str | None]) -> list[str]:
    """The study's title, or loss and method; where two are equal, the keys that differ are added."""
    names = [name or run.parts for run, name in zip(runs, given, strict=True)]
    titles = []
    for run, name in zip(runs, names, strict=True):
        alike = [other.recipe for other, other_name in zip(runs, names, strict=True) if other_name == name]
        differing = _differing(run.recipe, alike)
        addition = ", ".join(differing) if 0 < len(differing) <= _MOST_NAMED else run.folder.path.resolve().name
        titles.append(name if len(alike) == 1 else f"{name} ({addition})")
    return [
        title if titles.count(title) == 1 else f"{name} ({run.folder.path})"
        for title, name, run in zip(titles, names, runs, strict=True)
    ]


def _differing(recipe: Recipe, others: Sequence[Recipe]) -> list[str]:
    """``key=value`` of the keys in which recipes differ."""
    mine, *all_keys = (deciding(member, besides=_free_keys(member)) for member in (recipe, *others))
    keys = dict.fromkeys(key for values in all_keys for key, value in values.items() if value != {})
    differing = [key for key in keys if len({str(values.get(key)) for values in all_keys}) > 1]
    return [f"{key.split('.', 1)[1]}={mine.get(key, 'default')}" for key in differing]


def _free_keys(recipe: Recipe) -> list[str]:
    """Keys in which the runs of a group may differ: the seed, and the classes held out with it."""
    return ["training.seed", "protocol.validation_seed", *(["protocol.fold"] if recipe.protocol.name == "mlrc" else [])]
