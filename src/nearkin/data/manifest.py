"""A table of images from a list: a CSV file, as spreadsheets write it, or JSON Lines."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from nearkin.data.folder import SPLIT_FOLDERS
from nearkin.data.formats import ARCHIVE_ENDINGS, OTHER_FILES, is_archive, is_image_file, why_left_out
from nearkin.data.listing import Listing, class_name, natural_key, some_of
from nearkin.data.table import SPLITS, ImageTable
from nearkin.errors import DataError
from nearkin.suggest import did_you_mean

PATH_COLUMNS = ("path", "image", "file", "filename")
LABEL_COLUMNS = ("label", "class")
DELIMITERS = (",", ";", "\t")

_JSON_ENDINGS = (".jsonl", ".ndjson", ".json")


def read_manifest(path: str | Path, *, root: str | Path | None = None) -> ImageTable:
    """Read a list of images: one row each with its path and label, and if wanted its split and id.

    The columns are ``path`` (or ``image``, ``file``, ``filename``), ``label`` (or ``class``), ``split`` and ``id``;
    all others are kept in the table's ``columns``. CSV fields are separated by commas, semicolons or tabs. Without a
    split column every row is in ``train``; without an id column the path, as the list has it, is the id. Every value
    is text: the label ``007`` is not ``7``.

    Args:
        path: the CSV or JSON Lines file, UTF-8.
        root: the folder that paths are relative to; the manifest's own when None.

    Raises:
        DataError: with the line and column of the first thing that is wrong, or the list of files that are missing.

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
    return _read(path, root, need_labels=True)


def manifest_images(path: str | Path) -> ImageTable:
    """The images of a list that need not say what they are: where it has no label, the label is ``""``."""
    return _read(path, None, need_labels=False)


def _read(path: str | Path, root: str | Path | None, *, need_labels: bool) -> ImageTable:
    path = Path(path).expanduser()
    text = _read_text(path)
    is_json = path.suffix.lower() in _JSON_ENDINGS or text.lstrip().startswith("{")
    rows = list(_json_rows(path, text) if is_json else _csv_rows(path, text))
    if not rows:
        raise DataError(f"{str(path)!r} lists no images")

    names = list(dict.fromkeys(column for row in rows for column in row.values))
    columns = _Columns.among(path, names, need_labels=need_labels)
    files = [row.required(columns.path).replace("\\", "/") for row in rows]
    if need_labels:
        labels = [class_name(row.required(columns.label)) for row in rows]
    else:
        labels = [class_name(row.values.get(columns.label, "")) for row in rows]
    classes = sorted(set(labels), key=natural_key)
    if need_labels and len(classes) < 2:
        raise DataError(f"{str(path)!r} has images of one class only ({classes[0]!r}), at least two are needed")
    return ImageTable.build(
        path.stem,
        _existing_images(path, rows, files, Path(root).expanduser() if root is not None else path.parent),
        labels,
        splits=[_split(row, columns.split) if columns.split else "train" for row in rows],
        ids=_unique_ids(rows, [row.required(columns.id) for row in rows] if columns.id else files),
        class_names=classes,
        columns={column: [row.values.get(column, "") for row in rows] for column in columns.others},
    )


@dataclass(frozen=True)
class _Row:
    """One image's values by column, and where they stand."""

    path: Path
    line: int
    values: dict[str, str]

    def required(self, column: str) -> str:
        value = self.values.get(column, "").strip()
        if not value:
            raise self.error(f"column {column!r} is empty")
        return value

    def error(self, problem: str) -> DataError:
        return _error(self.path, self.line, problem)


@dataclass(frozen=True)
class _Columns:
    """Which of a manifest's columns mean what, in the manifest's own spelling."""

    path: str
    label: str
    split: str | None
    id: str | None
    others: tuple[str, ...]

    @classmethod
    def among(cls, path: Path, names: list[str], *, need_labels: bool) -> _Columns:
        by_key = {name.casefold(): name for name in reversed(names)}
        found: dict[str, str | None] = {}
        meanings = {"path": PATH_COLUMNS, "label": LABEL_COLUMNS, "split": ("split",), "id": ("id",)}
        for meaning, accepted in meanings.items():
            found[meaning] = next((by_key[key] for key in accepted if key in by_key), None)
        image, label = found["path"], found["label"]
        if label is None and not need_labels:
            label = LABEL_COLUMNS[0]
        if image is None or label is None:
            wanted = " and ".join(
                " or ".join(repr(name) for name in accepted)
                for column, accepted in ((image, PATH_COLUMNS), (label, LABEL_COLUMNS))
                if column is None
            )
            raise DataError(
                f"{str(path)!r} needs a column {wanted}; its columns are {', '.join(repr(name) for name in names)}"
            )
        used = set(found.values())
        return cls(image, label, found["split"], found["id"], tuple(name for name in names if name not in used))


def _read_text(path: Path) -> str:
    if path.is_dir():
        raise DataError(
            f"{str(path)!r} is a folder; a CSV or JSON Lines file is needed, or read the folder with "
            "nearkin.data.folder.read_folder"
        )
    if path.is_file():
        _check_is_list(path)
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise DataError(f"there is no file {str(path)!r}") from error
    except OSError as error:
        raise DataError(f"cannot read {str(path)!r}: {error.strerror or error}") from error
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        byte = f"0x{content[error.start]:02x}"
        raise _error(path, line, f"byte {byte} is not UTF-8; save the file as 'CSV UTF-8'") from error


def _check_is_list(path: Path) -> None:
    """Say of files that are something else what they are: that a photo is not UTF-8 would help nobody."""
    wanted = "a folder with one folder per class, or a list of images with their labels (CSV or JSON Lines)"
    if not path.stat().st_size:
        raise DataError(f"{str(path)!r} is an empty file; give {wanted}")
    if is_image_file(path):
        raise DataError(f"{str(path)!r} is one image; give {wanted}")
    if path.suffix.lower() in ARCHIVE_ENDINGS:
        raise DataError(f"{str(path)!r} is an archive; unpack it, and give the folder that it unpacks to")
    if (what := why_left_out(path.suffix)) != OTHER_FILES:
        raise DataError(f"{str(path)!r} is no list of images (such files are {what}); give {wanted}")
    if is_archive(path):
        raise DataError(
            f"{str(path)!r} is a spreadsheet or an archive; save the sheet as 'CSV UTF-8', or unpack the archive"
        )


def _csv_rows(path: Path, text: str) -> Iterator[_Row]:
    skipped = 0
    first, _, rest = text.partition("\n")
    if first.strip().lower().startswith("sep="):  # a hint that spreadsheets write for each other
        text, skipped = rest, 1
    header_line = text.lstrip("\r\n").partition("\n")[0]
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=_delimiter(header_line), strict=True)
    header: list[str] | None = None
    line = skipped + 1
    try:
        for fields in reader:
            if any(field.strip() for field in fields):
                if header is None:
                    header = _header(path, line, fields)
                else:
                    yield _csv_row(path, line, header, fields)
            line = skipped + reader.line_num + 1
    except csv.Error as error:
        raise _error(path, line, f"not CSV: {error}") from error


def _delimiter(header: str) -> str:
    """The delimiter that gives the header the columns we need, or else the most columns."""

    def merit(delimiter: str) -> tuple[int, int]:
        names = {field.strip().strip('"').casefold() for field in header.split(delimiter)}
        return sum(bool(names & set(accepted)) for accepted in (PATH_COLUMNS, LABEL_COLUMNS)), len(names)

    return max(DELIMITERS, key=merit)


def _header(path: Path, line: int, fields: list[str]) -> list[str]:
    header = [field.strip() for field in fields]
    seen: set[str] = set()
    for name in filter(None, (name.casefold() for name in header)):
        if name in seen:
            raise _error(path, line, f"two columns are called {name!r}")
        seen.add(name)
    return header


def _csv_row(path: Path, line: int, header: list[str], fields: list[str]) -> _Row:
    beyond = [field for field in fields[len(header) :] if field.strip()]
    if beyond or len(fields) < len(header):
        raise _error(
            path,
            line,
            f"{len(fields)} fields where the header has {len(header)} columns; "
            "a value with the delimiter in it must stand in double quotes",
        )
    # Spreadsheets leave empty columns at the right, which have no name.
    return _Row(path, line, {name: field.strip() for name, field in zip(header, fields, strict=False) if name})


def _json_rows(path: Path, text: str) -> Iterator[_Row]:
    if text.lstrip().startswith("["):
        raise DataError(f"{str(path)!r} is one JSON array; write one object per line instead (JSON Lines)")
    # Not splitlines(): it also breaks at characters that JSON allows inside strings.
    for line, content in enumerate(text.split("\n"), start=1):
        if not content.strip():
            continue
        try:
            record = json.loads(content)
        except (json.JSONDecodeError, RecursionError) as error:
            raise _error(path, line, f"not a JSON object on one line: {error}") from error
        if not isinstance(record, dict):
            raise _error(path, line, f"a JSON object is needed, got {content.strip()[:40]!r}")
        yield _Row(path, line, {key.strip(): _as_text(value) for key, value in record.items()})


def _as_text(value: object) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _split(row: _Row, column: str) -> str:
    value = row.required(column)
    split = SPLIT_FOLDERS.get(value.casefold())
    if split is None:
        raise row.error(f"column {column!r} has the unknown split {value!r}; {did_you_mean(value.casefold(), SPLITS)}")
    return split


def _unique_ids(rows: list[_Row], ids: list[str]) -> list[str]:
    first: dict[str, int] = {}
    for row, name in zip(rows, ids, strict=True):
        if name in first:
            raise row.error(
                f"{name!r} stands in line {first[name]} already; ids must differ, and an image listed "
                "twice would be its own nearest neighbour"
            )
        first[name] = row.line
    return ids


def _existing_images(path: Path, rows: list[_Row], files: list[str], base: Path) -> list[Path]:
    listing = Listing(base)
    found = [listing[file] for file in files]
    missing = [f"line {row.line}: {file}" for row, file, image in zip(rows, files, found, strict=True) if image is None]
    if missing:
        raise DataError(
            f"{len(missing):,} of the {len(files):,} images in {str(path)!r} are missing "
            f"(paths are relative to {str(base)!r}; give root to change that):\n{some_of(missing)}"
        )
    return [image for image in found if image is not None]


def _error(path: Path, line: int, problem: str) -> DataError:
    return DataError(f"{str(path)!r} line {line}: {problem}")
