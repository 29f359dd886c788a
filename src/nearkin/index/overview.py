"""What an index holds, counted: its labels and the range of its columns."""

from __future__ import annotations

from dataclasses import dataclass

from nearkin.index.index import Index

MOST_LABELS = 2000


@dataclass(frozen=True)
class ColumnRange:
    """A column that can be filtered by; of text there is no range."""

    name: str
    is_number: bool
    least: float | None
    most: float | None


@dataclass(frozen=True)
class Overview:
    """Counts of one moment."""

    items: int
    labelled: int
    labels: tuple[tuple[str, int], ...]
    """The most frequent first, at most :data:`MOST_LABELS`."""
    columns: tuple[ColumnRange, ...]


def overview(index: Index) -> Overview:
    """Count anew, as it is now; who asks often keeps it for as long as :attr:`Index.version` stays."""
    table = index._items
    found = table.rows(
        "SELECT label, count(*) AS n FROM items WHERE label IS NOT NULL GROUP BY label ORDER BY n DESC, label"
    )
    columns = []
    for name, field in list(table.fields().items())[3:]:
        least, most = None, None
        if field.is_number:
            least, most = table.rows(f"SELECT min({field.column}), max({field.column}) FROM items")[0]
        columns.append(ColumnRange(name, field.is_number, least, most))
    labels = tuple((label, n) for label, n in found)
    return Overview(table.count(), sum(n for _, n in labels), labels[:MOST_LABELS], tuple(columns))
