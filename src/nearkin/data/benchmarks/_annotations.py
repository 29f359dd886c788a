"""Reading the text files in which data sets are published, with errors that name the file and the line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from nearkin.errors import DataError


def read_rows(path: Path, columns: Sequence[str]) -> list[tuple[int, list[str]]]:
    """Line number and fields of every line that is not blank. Only the last field may contain spaces."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {path.name}: {error}") from error
    rows = []
    for line, content in enumerate(text.split("\n"), start=1):
        fields = content.split(maxsplit=len(columns) - 1)
        if not fields:
            continue
        if len(fields) < len(columns):
            raise malformed(path, line, f"expected '{' '.join(columns)}', got {content.strip()!r}")
        fields[-1] = fields[-1].rstrip()
        rows.append((line, fields))
    return rows


def whole_number(text: str, path: Path, line: int, column: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise malformed(path, line, f"{column} must be a whole number, got {text!r}")
    return int(text)


def malformed(path: Path, line: int, problem: str) -> DataError:
    return DataError(f"{path.name} line {line}: {problem}")
