"""Rows of a comparison: from a file, as values of one key, or as one change at a time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nearkin import losses
from nearkin.data.benchmarks import benchmarks
from nearkin.data.source import check_source
from nearkin.errors import RecipeError, did_you_mean, mistakes_in
from nearkin.losses.pml import PREFIX
from nearkin.recipe import Recipe, recipes_folder
from nearkin.recipe.reading import check_keys, layered, read_yaml
from nearkin.runs.folder import own_photos_name
from nearkin.studies.study import Row
from nearkin.training import methods
from nearkin.training.recipe_check import load_recipe

ENDING = ".compare.yml"
SECTIONS = ("objective", "method", "encoder", "training")
"""Sections of a recipe that a row of a file may change. Where budgets differ, the table has a column for them."""

_SMALL_IMAGES = ("glyphs", "mnist", "fashion_mnist")


@dataclass(frozen=True)
class RowChanges:
    """A row of a file before it is put on a recipe."""

    name: str
    title: str
    base: str | None
    changes: Mapping[str, Any]


def shared_recipe(
    data: str | None = None,
    recipe: str | None = None,
    rows_from: str | Path | None = None,
    *,
    say: Callable[[str], None] = print,
) -> str:
    """The name of the recipe that all rows share: as given, as the file of rows says, or one that suits the data."""
    if recipe is not None:
        return recipe
    if rows_from is not None and (named := _read_file(file := named_rows(rows_from)).get("recipe")) is not None:
        nearby = file.parent / str(named)
        return str(nearby) if nearby.is_file() else str(named)
    data = data or "glyphs"
    if data not in benchmarks():
        check_source(data)
        return own_photos_name(say=say)
    return "glyphs/demo" if data in _SMALL_IMAGES else "cub/proxy_anchor"


def base_recipe(recipe: str, data: str | None = None, overrides: Iterable[str] = ()) -> Recipe:
    """The recipe that all rows share, with its epoch chosen on validation classes."""
    # Options of a loss or a method go to the rows: here they would meet the recipe's own.
    shared = [text for text in overrides if not text.startswith(("objective.", "method."))]
    source = [] if data is None else [f"data.source={json.dumps(data)}"]
    return load_recipe(recipe, [*source, "protocol.name=validation", *shared])


def rows_file(base: Recipe) -> Path:
    """The file with the rows that suit a recipe's data and backbone."""
    names = _shipped_files()
    return names.get(base.data.source) or names["glyphs" if base.encoder.backbone == "small" else "photos"]


def named_rows(given: str | Path) -> Path:
    """A file with rows, by its path or by the name of one that comes with nearkin."""
    names = _shipped_files()
    file = Path(given) if Path(given).is_file() else names.get(str(given))
    if file is None:
        raise RecipeError(f"no rows {str(given)!r}, neither as a file nor by name: {did_you_mean(str(given), names)}")
    return file


def read_rows(file: str | Path) -> list[RowChanges]:
    """The rows that a file defines."""
    rows: dict[str, RowChanges] = {}
    for name, row in _read_file(Path(file))["rows"].items():
        with mistakes_in(f"{Path(file).name}, row {name!r}"):
            rows[str(name)] = _row_changes(str(name), row, rows)
    return list(rows.values())


def chosen_rows(rows: Sequence[RowChanges], names: Iterable[str] | None) -> list[RowChanges]:
    """The rows of a file with these names; None for all.

    A name that the file lacks may be a loss, a method, or both as ``LOSS+METHOD``, which then have their default
    options. A method alone is put on the first row of the file.

    >>> rows = read_rows(named_rows("glyphs"))
    >>> [(row.name, row.base) for row in chosen_rows(rows, ["angular", "vcpa", "triplet+ccp"])]
    [('vcpa', 'proxy_anchor'), ('angular', None), ('triplet+ccp', 'triplet')]
    """
    if names is None:
        return list(rows)
    wanted, known = dict.fromkeys(names), {row.name: row for row in rows}
    others = [_part_row(name, known) for name in wanted if name not in known]
    return [row for row in rows if row.name in wanted] + others


def _part_row(name: str, known: Mapping[str, RowChanges]) -> RowChanges:
    """A loss or a method as a row, with its default options."""
    loss, _, method = name.partition("+")
    if loss in methods.catalogue() and not method:
        loss, method = next(iter(known)), loss
    is_known = loss.startswith(PREFIX) or loss in (*known, *losses.catalogue())
    if not is_known or method not in ("", *methods.catalogue()):
        hint = did_you_mean(name, sorted({*known, *losses.catalogue(), *methods.catalogue()}))
        raise RecipeError(f"no row {name!r}, and no loss, method or LOSS+METHOD of that name: {hint}")
    if method:
        base = known.get(loss) or _part_row(loss, known)
        changes = layered(base.changes, {"method": {"name": method}})
        return RowChanges(name, f"{base.title} with {method}", loss, changes)
    # A pair loss needs classes with several images in a batch.
    part = losses.loss_named(loss)
    learns_classes = losses.kind(part) == "proxy" or getattr(part, "learns_classes", False)
    sampler = {} if learns_classes else {"training": {"sampler": "balanced"}}
    return RowChanges(name, name, None, {"objective": {"name": loss}, **sampler})


def rows_on(base: Recipe, rows: Iterable[RowChanges], *, overrides: Iterable[str] = ()) -> list[Row]:
    """Rows with the data, encoder, budget and protocol of ``base``; the objective and method are the rows' own.

    ``overrides`` are stronger than what a row sets.
    """
    shared = {key: value for key, value in base.as_mapping().items() if key not in ("objective", "method")}
    overrides, made = list(overrides), []
    for row in rows:
        with mistakes_in(f"row {row.name!r}"):
            recipe = load_recipe(layered(shared, row.changes), overrides)
        made.append(Row(row.name, row.title, recipe, row.base))
    return made


def chosen_names(wanted: Iterable[str], known: Sequence[str]) -> list[str]:
    """``wanted`` in the order of ``known``, or an error that suggests the right spelling."""
    wanted = set(wanted)
    if unknown := sorted(wanted - set(known)):
        raise RecipeError(f"no row {unknown[0]!r}: {did_you_mean(unknown[0], known)}")
    return [name for name in known if name in wanted]


def varied_rows(recipe: Recipe, key: str, values: Sequence[str]) -> list[Row]:
    """A row for every value of one key, compared with the recipe's own value, if that is among them."""
    if len(set(values)) < 2:
        raise RecipeError(f"{key} needs two values or more, got {', '.join(values) or 'none'}: {key}=A,B,…")
    short, mapping = key.rpartition(".")[2], recipe.as_mapping()
    rows = [Row(f"{short}-{value}", f"{key}={value}", load_recipe(mapping, [f"{key}={value}"])) for value in values]
    base = next((row.name for row in rows if row.recipe == recipe), None)
    return [replace(row, base=None if row.name == base else base) for row in rows]


def ablated_rows(recipe: Recipe, changes: Sequence[str]) -> list[Row]:
    """The recipe, and a row for every change, compared with it; changes that belong together are joined by ``&``."""
    rows = [Row("unchanged", "Unchanged", recipe)]
    for text in changes:
        parts = text.split("&")
        changed = load_recipe(recipe.as_mapping(), parts)
        if changed == recipe:
            raise RecipeError(f"{text} changes nothing: the recipe has it already")
        name = "-".join(part.partition("=")[0].rpartition(".")[2] + "-" + part.partition("=")[2] for part in parts)
        rows.append(Row(name, ", ".join(parts), changed, "unchanged"))
    return rows


def _shipped_files() -> dict[str, Path]:
    return {file.name.removesuffix(ENDING): file for file in sorted((recipes_folder() / "compare").glob(f"*{ENDING}"))}


def _read_file(path: Path) -> dict[str, Any]:
    content = read_yaml(path)
    with mistakes_in(str(path)):
        check_keys(content, ("recipe", "rows"))
    if not isinstance(content.get("rows"), dict) or not content["rows"]:
        raise RecipeError(f"{path} must hold 'rows:' with a name for each row")
    return content


def _row_changes(name: str, row: Any, before: Mapping[str, RowChanges]) -> RowChanges:
    check_keys(row, ("title", "base", *SECTIONS), "a title and sections of a recipe")
    base = row.get("base")
    if base is not None and base not in before:
        raise RecipeError(f"its base {base!r} must be a row above it: {did_you_mean(str(base), before)}")
    changes = {} if base is None else before[base].changes
    for section in SECTIONS:
        content = row.get(section, {})
        if not isinstance(content, Mapping):
            raise RecipeError(f"section {section!r} must hold keys and values, got {content!r}")
        changes = layered(changes, {section: content} if content else {})
    if "name" not in changes.get("objective", {}):
        raise RecipeError("it names no loss: give objective: {name: …}, or a base that has one")
    return RowChanges(name, str(row.get("title", name)), base, changes)
