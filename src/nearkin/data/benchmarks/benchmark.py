"""What a benchmark is: where it is kept, how it is read, and how many images and classes it must have."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from nearkin.data.table import ImageTable
from nearkin.errors import DataError


def needs(*files: str | tuple[str, ...]) -> Callable[[Path], list[str]]:
    """A check for files and folders: which of them are not there. A tuple is satisfied by any of its members."""
    groups = [(file,) if isinstance(file, str) else file for file in files]

    def missing(root: Path) -> list[str]:
        lacking = [group for group in groups if not any(os.path.exists(root / file) for file in group)]
        return [group[0] + (f" (or {', '.join(group[1:])})" if group[1:] else "") for group in lacking]

    return missing


@dataclass(frozen=True)
class Benchmark:
    """A published data set in its published layout.

    ``counts`` gives ``(images, classes)`` for every split. ``folders`` are the names under which people keep it,
    ``inner_folders`` those that unpacking adds below. ``missing`` says which key files a folder lacks. A benchmark
    without ``folders`` is made by the package itself and needs no files; its reader is called with an empty path.

    >>> def read_toy(root):
    ...     return ImageTable.build("toy", [root / "a.jpg", root / "b.jpg"], ["a", "b"], splits=["train", "test"])
    >>> toy = Benchmark(name="toy", title="Toy", home="example.org", layout="toy/\\n  a.jpg\\n  b.jpg",
    ...                 counts={"train": (1, 1), "test": (1, 1)}, reader=read_toy, folders=("toy",))
    >>> len(toy.read(Path("data/toy")))
    2
    """

    name: str
    title: str
    home: str
    layout: str
    counts: Mapping[str, tuple[int, int]]
    reader: Callable[[Path], ImageTable]
    folders: tuple[str, ...] = ()
    inner_folders: tuple[str, ...] = ()
    missing: Callable[[Path], list[str]] = field(default_factory=needs)

    @property
    def embedded(self) -> bool:
        return not self.folders

    def read(self, root: str | Path, *, check_counts: bool = True) -> ImageTable:
        """The table of the benchmark in ``root``, the folder that the layout starts with.

        Errors name the file, the expected layout and where the data is published. With ``check_counts`` there must be
        as many images and classes as published.
        """
        root = Path(root).expanduser()
        try:
            if problem := self.problem(root):
                raise DataError(problem)
            table = self.reader(root)
            published = self.counts if check_counts else {}
            for split, (images, classes) in published.items():
                labels = table.labels[table.splits == split]
                there = f"{len(labels):,} images of {len(np.unique(labels)):,} classes"
                if there != f"{images:,} images of {classes:,} classes":
                    raise DataError(f"{split} has {there}, published are {images:,} of {classes:,}")
        except DataError as error:
            raise DataError(f"{self.title} in {str(root)!r}: {error}\n{self.expected_layout()}") from error
        return table

    def find(self, data_root: str | Path) -> Path | None:
        """The benchmark's folder below ``data_root`` (or that folder itself), whatever the case of its name.

        A folder that has all the key files is preferred to one that has not; None when there is neither.
        """
        candidates = list(self._candidates(Path(data_root).expanduser()))
        return min(candidates, key=lambda folder: bool(self.missing(folder)), default=None)

    def problem(self, folder: Path) -> str | None:
        """Which of the key files ``folder`` lacks, in words."""
        lacking = self.missing(folder)
        return f"there is no {', no '.join(lacking)}" if lacking else None

    def expected_layout(self) -> str:
        """The layout that is read and where the files are published, for messages."""
        return f"Expected layout:\n{textwrap.indent(self.layout.strip(), '  ')}\nPublished at {self.home}"

    def _candidates(self, data_root: Path) -> Iterator[Path]:
        names = list(dict.fromkeys(folder.casefold() for folder in self.folders))
        top = [data_root] if data_root.is_dir() and data_root.resolve().name.casefold() in names else []
        top += _subfolders(data_root, names)
        yield from top
        for folder in top:
            yield from _subfolders(folder, [*names, *self.inner_folders])


def _subfolders(folder: Path, names: list[str]) -> list[Path]:
    """The subfolders with one of the (lower-case) names, in the order of the names."""
    try:
        with os.scandir(folder) as entries:
            present = sorted((entry.name.casefold(), entry.name) for entry in entries if entry.is_dir())
    except OSError:
        return []
    return [folder / spelling for name in names for key, spelling in present if key == name]


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
