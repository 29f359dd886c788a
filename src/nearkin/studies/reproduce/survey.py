"""What there is of a table here: how many rows it has, on which data sets, and what is missing to run them."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from nearkin.recipe import Recipe
from nearkin.studies.reproduce.papers import Item, merged, rows_on, tables_of
from nearkin.studies.reproduce.rows import Settings, missing_data, missing_weights

DIGITS = "the ten digits of Glyphs take its place"


@dataclass(frozen=True)
class Standing:
    """A table or figure, and what stands in the way of running it."""

    item: Item
    data: tuple[str, ...]
    rows: int
    """Lines, counted on every data set."""
    not_in_nearkin: int
    missing_data: tuple[str, ...]
    missing_weights: tuple[str, ...]
    """Backbones that have no pretrained weights here."""
    stand_in: str | None = None
    """What takes the place of the data where they are missing."""

    @property
    def in_the_way(self) -> str:
        """In words, short enough for a table."""
        if self.item.instead is not None:
            return self.item.instead
        parts = []
        if self.missing_data:
            instead = f" ({self.stand_in})" if self.stand_in else ""
            parts.append(f"data: {', '.join(self.missing_data)}{instead}")
        if self.missing_weights:
            parts.append(f"weights: {', '.join(self.missing_weights)}")
        if self.not_in_nearkin:
            parts.append(f"{self.not_in_nearkin} rows not in nearkin")
        return "; ".join(parts) or "nothing"


def standing_of(item: Item, settings: Settings) -> Standing:
    """How a table or figure stands here. Only key files of the data sets are looked for.

    >>> from nearkin.studies.reproduce.papers import find_item
    >>> standing = standing_of(find_item("mpa/table-4"), Settings(root="/no/such/folder"))
    >>> standing.rows, standing.in_the_way
    (5, 'data: cub; weights: bn_inception')
    """
    data: list[str] = []
    backbones: set[str] = set()
    rows = absent = 0
    stand_in = None
    for table in tables_of(item):
        if table.draw.kind == "digits":
            stand_in = DIGITS
        data += table.data
        lines = [row for name in table.data for row in rows_on(table, name)]
        rows += len(lines)
        absent += sum(row.missing is not None for row in lines)
        for row in lines:
            if row.missing is None:
                encoder = merged(table.changes, row.changes).get("encoder", {})
                backbones.add(settings.backbone or encoder.get("backbone") or _backbone(row.recipe))
    return Standing(
        item=item,
        data=tuple(data),
        stand_in=stand_in,
        rows=rows,
        not_in_nearkin=absent,
        missing_data=tuple(name for name in data if missing_data(name, settings.root) is not None),
        missing_weights=tuple(
            sorted(name for name in backbones if not settings.weights and missing_weights(name, settings.root))
        ),
    )


@functools.cache
def _backbone(recipe: str) -> str:
    return Recipe.load(recipe).encoder.backbone
