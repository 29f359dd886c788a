"""Runs of a table or report: study folders opened up, and runs that differ only in their seed put together."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from nearkin.errors import DataError
from nearkin.recipe import Recipe
from nearkin.recipe.identity import deciding
from nearkin.report.opened_run import OpenedRun, ViewOptions, open_runs, source_of
from nearkin.runs.data import Progress, say_if_images_differ
from nearkin.runs.folder import RunFolder
from nearkin.runs.scores import EnsembleScores, Scores

COMPARISON = "comparison.json"
_MOST_NAMED = 3


@dataclass(frozen=True)
class RunGroup:
    """Runs of one recipe with different seeds, in the order of the seeds; under MLRC also with different folds."""

    title: str
    runs: tuple[OpenedRun, ...]
    ensemble: EnsembleScores | None = None
    """What ``nearkin mlrc`` found for these runs together."""
    base: str | None = None
    """The title of the group that a study holds it against."""

    @property
    def recipe(self) -> Recipe:
        return self.runs[0].recipe

    @property
    def data(self) -> str:
        """What the data is called."""
        return self.scores[0].conditions.data if self.scores else Path(self.recipe.data.source).stem

    @cached_property
    def finished(self) -> tuple[OpenedRun, ...]:
        return tuple(run for run in self.runs if run.folder.is_finished)

    @cached_property
    def scores(self) -> tuple[Scores, ...]:
        """Of the finished runs."""
        return tuple(run.folder.scores() for run in self.finished)

    def test_by_run(self, name: str) -> dict[tuple[int, int], float]:
        """A score on the test classes by seed and fold."""
        both = zip(self.finished, self.scores, strict=True)
        return {
            _drawn_by(run.recipe): float(each.test[name])
            for run, each in both
            if each.test and each.test.get(name) is not None
        }


@dataclass(frozen=True)
class Gathered:
    """Groups by the data they were trained on, and what was left out and why."""

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
    """Open the runs at ``paths``, where the folder of a study stands for all its runs, and group them.

    A run with the recipe and the seed of another adds nothing to a spread and is left out with a word about it.
    """
    found: dict[Path, tuple[Path, str | None, EnsembleScores | None]] = {}
    bases: dict[str, str] = {}
    for path in paths:
        whole = EnsembleScores.read(path)
        bases |= _study_bases(Path(path) / COMPARISON)
        for run_path, title in _run_paths(Path(path)):
            place = run_path.expanduser().resolve()
            first, named, ensemble = found.get(place, (run_path, None, None))
            found[place] = (first, named or title, ensemble or whole)
    by_source: dict[tuple[str, object], list[Path]] = {}
    images: dict[str, object] = {}
    for path, *_ in found.values():
        folder = RunFolder.existing(path)
        source = source_of(folder.recipe().data)
        # A run of an earlier version does not say which images it had; it goes with those that do.
        which = images.setdefault(source, folder.images) if folder.images is None else folder.images
        by_source.setdefault((source, which), []).append(path)
    say_if_images_differ(RunFolder(path) for path, *_ in found.values())
    by_data, left_out = [], []
    for of_data in by_source.values():
        families: dict[str, list[OpenedRun]] = {}
        for run in open_runs(of_data, view, progress=progress):
            members = families.setdefault(run.decided_by(_free(run.recipe)), [])
            twin = next((other for other in members if _drawn_by(other.recipe) == _drawn_by(run.recipe)), None)
            if twin is None:
                members.append(run)
            else:
                left_out.append(f"{run.folder.path}: the same recipe and seed as {twin.folder.path}")
        groups = [sorted(members, key=lambda run: run.recipe.training.seed) for members in families.values()]
        given = [found[members[0].folder.path.expanduser().resolve()] for members in groups]
        titles = _titles(groups, [title for _, title, _ in given])
        parts = zip(titles, groups, given, strict=True)
        by_data.append(
            tuple(RunGroup(title, tuple(members), whole, bases.get(title)) for title, members, (*_, whole) in parts)
        )
    return Gathered(tuple(by_data), tuple(left_out))


def _run_paths(path: Path) -> list[tuple[Path, str | None]]:
    """The run at ``path``, or all runs below it with the titles that a study gives them."""
    if RunFolder(path).is_begun or not path.is_dir():
        return [(path, None)]
    below = sorted({file.parent for depth in ("*", "*/*") for file in path.glob(f"{depth}/recipe.yaml")})
    if not below:
        raise DataError(
            f"{str(path)!r} is neither a run folder nor a study: there is no recipe.yaml in it or two levels below"
        )
    titles = _study_titles(path / COMPARISON)
    order = list(titles)

    def row_of(run: Path) -> str:
        return run.relative_to(path).parts[0]

    below.sort(key=lambda run: order.index(row_of(run)) if row_of(run) in titles else len(order))
    return [(run, titles.get(row_of(run))) for run in below]


def _study_titles(file: Path) -> dict[str, str]:
    """Titles of a study's rows by the names of their folders, in the order of its table."""
    return {str(row["name"]): str(row["title"]) for row in _study_rows(file)}


def _study_bases(file: Path) -> dict[str, str]:
    """By the titles of a study's rows, those of their bases."""
    titles = _study_titles(file)
    named = {str(row["title"]): row.get("base") for row in _study_rows(file)}
    return {title: titles[base] for title, base in named.items() if base in titles}


def _study_rows(file: Path) -> list[dict[str, Any]]:
    if not file.exists():
        return []
    try:
        rows = json.loads(file.read_text(encoding="utf-8"))["rows"]
        return [{**row, "name": row["name"], "title": row["title"]} for row in rows]
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{file} cannot be read: {error!r}. Run nearkin compare again to write it anew") from error


def _titles(groups: Sequence[Sequence[OpenedRun]], given: Sequence[str | None]) -> list[str]:
    """The study's title, or loss and method; what differs is added where two groups would be called the same."""
    firsts = [members[0] for members in groups]
    names = [name or run.parts for run, name in zip(firsts, given, strict=True)]
    titles = []
    for run, name in zip(firsts, names, strict=True):
        alike = [other.recipe for other, others in zip(firsts, names, strict=True) if others == name]
        differing = _differing(run.recipe, alike)
        own = ", ".join(differing) if 0 < len(differing) <= _MOST_NAMED else run.folder.path.resolve().name
        titles.append(name if len(alike) == 1 else f"{name} ({own})")
    return [
        title if titles.count(title) == 1 else f"{name} ({run.folder.path})"
        for title, name, run in zip(titles, names, firsts, strict=True)
    ]


def _differing(recipe: Recipe, others: Sequence[Recipe]) -> list[str]:
    """``key=value`` of what this recipe has otherwise than some of the others."""
    own, *every = (deciding(each, besides=_free(each)) for each in (recipe, *others))
    keys = dict.fromkeys(key for each in every for key, value in each.items() if value != {})
    differing = [key for key in keys if len({str(each.get(key)) for each in every}) > 1]
    return [f"{key.split('.', 1)[1]}={own.get(key, 'default')}" for key in differing]


def _drawn_by(recipe: Recipe) -> tuple[int, int]:
    """What tells the runs of a group apart."""
    return recipe.training.seed, recipe.protocol.fold


def _free(recipe: Recipe) -> list[str]:
    """Keys in which the runs of a group may differ: the seed, and what is held out with it."""
    return ["training.seed", "protocol.validation_seed", *(["protocol.fold"] if recipe.protocol.name == "mlrc" else [])]
