"""What runs are called: by their loss and method, by the row of the study they belong to, by their folder."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from nearkin.recipe import Recipe

_SEED = re.compile(r"seed-\d+")


def part_names(recipe: Recipe) -> str:
    """The loss and, unless it is plain training, the method."""
    method = recipe.method.name
    return recipe.objective.name if method == "plain" else f"{recipe.objective.name} with {method}"


def row_name(path: Path) -> str | None:
    """The row of a study that a run belongs to, by its folder; None for a run of its own."""
    whole = path.expanduser().resolve()
    return whole.parent.name if _SEED.fullmatch(whole.name) else None


def run_name(path: Path) -> str:
    """The folder's name, behind that of its row where it is a run of a study, where all are called alike.

    >>> run_name(Path("runs/photos")), run_name(Path("study/vcpa/seed-0"))
    ('photos', 'vcpa-seed-0')
    """
    row, name = row_name(path), path.expanduser().resolve().name
    return name if row is None else f"{row}-{name}"


def row_title(recipe: Recipe, path: Path) -> str:
    """Loss and method, behind the name of the row where that is another.

    >>> row_title(Recipe(), Path("runs/photos")), row_title(Recipe(), Path("study/c2/seed-0"))
    ('proxy_anchor', 'c2 (proxy_anchor)')
    """
    row, parts = row_name(path), part_names(recipe)
    return parts if row in (None, parts) else f"{row} ({parts})"


def distinct_labels(runs: Sequence[tuple[str, str, Path]]) -> list[str]:
    """A label for each ``(title, name, path)``: the title, behind which comes the name, or else the path, if need be.

    >>> distinct_labels([("vcpa", "a", Path("x/a")), ("vcpa", "b", Path("x/b")), ("mpa", "b", Path("y/b"))])
    ['vcpa (a)', 'vcpa (x/b)', 'mpa']
    """
    titles, names = [title for title, *_ in runs], [name for _, name, _ in runs]
    labels = []
    for title, name, path in runs:
        own = name if names.count(name) == 1 else str(path)
        labels.append(title if titles.count(title) == 1 else f"{title} ({own})")
    return labels
