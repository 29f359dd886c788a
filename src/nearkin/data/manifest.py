"""A table of images from a list: a CSV file, as spreadsheets write it, or JSON Lines."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path

from nearkin.data.folder import SPLIT_FOLDERS, check_is_list, class_name, existing_images, natural_key, suggest_path
from nearkin.data.table import SPLITS, ImageTable
from nearkin.errors import DataError, did_you_mean

COLUMNS = {
    "path": ("path", "image", "file", "filename"),
    "label": ("label", "class"),
    "split": ("split",),
    "id": ("id",),
}


def read_manifest(path: str | Path, *, need_labels: bool = True) -> ImageTable:
    """Read a list of images: a row for each, with its path and label, and optionally its split and id.

    The columns are ``path`` (or ``image``, ``file``, ``filename``), ``label`` (or ``class``), ``split`` and ``id``;
    other columns are kept in the table's ``columns``. CSV fields are separated by commas, semicolons or tabs. Without
    a split column every row is in ``train``; without an id column the path, as the list has it, is the id. Every value
    is text: the label ``007`` is not ``7``.

    Args:
        path: the CSV or JSON Lines file, UTF-8; the images' paths are relative to its folder.
        need_labels: whether every image must have a label; otherwise a missing one is ``""``.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as root:
        ...     for file in ("a.jpg", "b.jpg"):
        ...         Path(root, file).touch()
        ...     _ = Path(root, "list.csv").write_text("file;label;colour\\na.jpg;apple;red\\nb.jpg;pear;green\\n")
        ...     table = read_manifest(Path(root, "list.csv"))
        >>> table.class_names, table.columns["colour"].tolist()
        (('apple', 'pear'), ['red', 'green'])
    """
    path = Path(path).expanduser()
    text = _read_text(path)
    is_json = path.suffix.lower() in (".jsonl", ".ndjson", ".json") or text.lstrip().startswith("{")
    if is_json and text.lstrip().startswith("["):
        raise DataError(f"{str(path)!r} is one JSON array; write one object per line instead (JSON Lines)")
    rows = dict(_json_rows(path, text) if is_json else _csv_rows(path, text))
    if not rows:
        raise DataError(
            f"{str(path)!r} lists no images: it needs a line with the names of its columns, such as path,label, and "
            "below it a line for each image"
        )
    names = list(dict.fromkeys(column for row in rows.values() for column in row))
    by_key = {name.casefold(): name for name in reversed(names)}
    spellings = {meaning: [by_key[key] for key in accepted if key in by_key] for meaning, accepted in COLUMNS.items()}
    columns = {meaning: spelled[0] for meaning, spelled in spellings.items() if spelled}
    needed = ("path", "label") if need_labels else ("path",)
    if lacking := [COLUMNS[meaning] for meaning in needed if meaning not in columns]:
        raise DataError(
            f"{str(path)!r} needs a column {' and '.join(' or '.join(map(repr, accepted)) for accepted in lacking)}; "
            f"its columns are {', '.join(map(repr, names))}: add the column, or rename one of these"
        )

    def values(meaning: str) -> list[str]:
        column = columns[meaning]
        for line, row in rows.items():
            if not row.get(column, "").strip():
                raise _malformed(path, line, f"column {column!r} is empty")
        return [row[column].strip() for row in rows.values()]

    files = [file.replace("\\", "/") for file in values("path")]
    labels = values("label") if need_labels else [row.get(columns.get("label", ""), "") for row in rows.values()]
    labels = [class_name(label) for label in labels]
    classes = sorted(set(labels), key=natural_key)
    if need_labels and len(classes) < 2:
        raise DataError(f"{str(path)!r} has images of one class only ({classes[0]!r}), at least two are needed")
    splits = ["train"] * len(rows)
    if "split" in columns:
        splits = [SPLIT_FOLDERS.get(value.casefold(), value) for value in values("split")]
        for line, split in zip(rows, splits, strict=True):
            if split not in SPLITS:
                problem = f"column {columns['split']!r} has the unknown split {split!r}"
                raise _malformed(path, line, f"{problem}; {did_you_mean(split.casefold(), SPLITS)}")
    ids = values("id") if "id" in columns else files
    first: dict[str, int] = {}
    for line, name in zip(rows, ids, strict=True):
        if name in first:
            twice = "ids must differ, and an image listed twice would be its own nearest neighbour"
            raise _malformed(path, line, f"{name!r} is already in line {first[name]}; {twice}")
        first[name] = line
    extra = [name for name in names if name not in columns.values()]
    return ImageTable.build(
        path.stem,
        existing_images(path.parent, files, listed_in=repr(str(path)), lines=[*rows]),
        labels,
        splits=splits,
        ids=ids,
        class_names=classes,
        columns={column: [row.get(column, "") for row in rows.values()] for column in extra},
    )


def _read_text(path: Path) -> str:
    if path.is_dir():
        raise DataError(f"{str(path)!r} is a folder: read it with nearkin.read_folder, or give a list of images")
    check_is_list(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {str(path)!r}: {error.strerror or error}{suggest_path(path)}") from error
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        problem = f"byte 0x{content[error.start]:02x} is not UTF-8; save the file as 'CSV UTF-8'"
        raise _malformed(path, line, problem) from error


def _csv_rows(path: Path, text: str) -> Iterator[tuple[int, dict[str, str]]]:
    """The line number of each row, and its values by column."""
    first, _, rest = text.partition("\n")
    if first.strip().lower().startswith("sep="):  # a hint that spreadsheets write for themselves
        text = "\n" + rest
    delimiter = _delimiter(text.lstrip("\r\n").partition("\n")[0])
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    header: list[str] = []
    line = 1
    try:
        for row in reader:
            fields = [field.strip() for field in row]
            if any(fields) and not header:
                header = fields
                names = [name.casefold() for name in header if name]
                if twice := [name for name in names if names.count(name) > 1]:
                    raise _malformed(path, line, f"two columns are called {twice[0]!r}")
            elif any(fields):
                if any(fields[len(header) :]) or len(fields) < len(header):
                    problem = f"{len(fields)} fields where the header has {len(header)} columns"
                    advice = "a value with the delimiter in it must stand in double quotes"
                    raise _malformed(path, line, f"{problem}; {advice}")
                # Spreadsheets leave empty columns without a name at the right.
                yield line, {name: field for name, field in zip(header, fields, strict=False) if name}
            line = reader.line_num + 1
    except csv.Error as error:
        raise _malformed(path, line, f"not CSV: {error}") from error


def _delimiter(header: str) -> str:
    """The delimiter by which the header has the columns we need, or else the most columns."""

    def merit(delimiter: str) -> tuple[int, int]:
        names = {field.strip().strip('"').casefold() for field in header.split(delimiter)}
        return sum(bool(names & set(COLUMNS[needed])) for needed in ("path", "label")), len(names)

    return max((",", ";", "\t"), key=merit)


def _json_rows(path: Path, text: str) -> Iterator[tuple[int, dict[str, str]]]:
    # Not splitlines(): it also breaks at characters that JSON allows inside strings.
    for line, content in enumerate(text.split("\n"), start=1):
        if not content.strip():
            continue
        try:
            record = json.loads(content)
        except (json.JSONDecodeError, RecursionError) as error:
            raise _malformed(path, line, f"not a JSON object on one line: {error}") from error
        if not isinstance(record, dict):
            raise _malformed(path, line, f"a JSON object is needed, got {content.strip()[:40]!r}")
        record = {key.strip(): "" if value is None else value for key, value in record.items()}
        texts = {
            key: json.dumps(value, ensure_ascii=False) for key, value in record.items() if not isinstance(value, str)
        }
        yield line, record | texts


def _malformed(path: Path, line: int, problem: str) -> DataError:
    return DataError(f"{str(path)!r} line {line}: {problem}")
