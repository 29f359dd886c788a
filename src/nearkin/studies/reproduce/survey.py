"""What there is of a table here: how many rows it has, on which data sets, and what is missing to run them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nearkin.report.table import NOTHING
from nearkin.studies.reproduce.papers import Item, PaperTable, TableRow, rows_on, tables_of
from nearkin.studies.reproduce.rows import Settings, kept_recipe, missing_data, missing_weights

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

    def cells(self) -> list[str]:
        """A line of the list of all tables."""
        title = self.item.title + (f" (rows of {', '.join(self.item.same_as)})" if self.item.same_as else "")
        return [self.item.id, title, ", ".join(self.data) or NOTHING, str(self.rows or NOTHING), self.in_the_way]

    def as_record(self) -> dict[str, Any]:
        return {
            "table": self.item.id,
            "title": self.item.title,
            "data": list(self.data),
            "rows": self.rows,
            "missing_data": list(self.missing_data),
            "missing_weights": list(self.missing_weights),
            "instead": self.item.instead,
            "same_as": [f"{self.item.paper}/{key}" for key in self.item.same_as],
        }


def standing_of(item: Item, settings: Settings) -> Standing:
    """How a table or figure stands here. Only key files of the data sets are looked for.

    >>> from nearkin.studies.reproduce.papers import find_item
    >>> standing = standing_of(find_item("mpa/table-4"), Settings(root="/no/such/folder"))
    >>> standing.rows, standing.in_the_way
    (5, 'data: cub; weights: bn_inception')
    """
    tables = tables_of(item)
    data = tuple(name for table in tables for name in table.data)
    lines = [(table, row) for table in tables for name in table.data for row in rows_on(table, name)]
    backbones = {settings.backbone or _backbone(table, row) for table, row in lines if row.missing is None}
    backbones = set() if settings.weights else backbones
    return Standing(
        item=item,
        data=data,
        stand_in=DIGITS if any(table.draw.kind == "digits" for table in tables) else None,
        rows=len(lines),
        not_in_nearkin=sum(row.missing is not None for _, row in lines),
        missing_data=tuple(name for name in data if missing_data(name, settings.root) is not None),
        missing_weights=tuple(name for name in sorted(backbones) if missing_weights(name, settings.root)),
    )


def _backbone(table: PaperTable, row: TableRow) -> str:
    for changes in (row.changes, table.changes):
        if named := changes.get("encoder", {}).get("backbone"):
            return str(named)
    return str(kept_recipe(row.recipe)["encoder"]["backbone"])
