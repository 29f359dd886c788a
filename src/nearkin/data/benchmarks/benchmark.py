"""What a benchmark is: where it is kept, how it is read, and how many images and classes it must have."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from nearkin.data.table import ImageTable
from nearkin.errors import DataError, notice


def needs(*files: str | tuple[str, ...]) -> Callable[[Path], list[str]]:
    """A check that lists which files and folders are missing. Of a tuple, one member is enough."""
    groups = [(file,) if isinstance(file, str) else file for file in files]

    def missing(root: Path) -> list[str]:
        lacking = [group for group in groups if not any((root / file).exists() for file in group)]
        return [group[0] + (f" (or {', '.join(group[1:])})" if group[1:] else "") for group in lacking]

    return missing


TOLERANCE = 0.005
"""Share of a benchmark's images that a copy may lack, as a common mirror of Cars196 does; a notice says how many."""


@dataclass(frozen=True)
class Benchmark:
    """A published data set in its published layout.

    ``counts`` gives ``(images, classes)`` for every split. ``folders`` are the names under which people keep it,
    ``inner_folders`` those of subfolders that unpacking adds. ``missing`` lists the key files that a folder lacks. A
    benchmark without ``folders`` needs no files: the package makes it, and its reader is called with an empty path.
    ``archives`` describes the files to bring; they are recognised by ``folders`` and ``parts``, names at their top. An
    archive with a public ``address`` can be downloaded, and must then have the checksum ``md5``.

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
    archives: str = ""
    parts: tuple[str, ...] = ()
    address: str = ""
    md5: str = ""

    @property
    def embedded(self) -> bool:
        return not self.folders

    def read(self, root: str | Path, *, check_counts: bool = True) -> ImageTable:
        """The table of the benchmark in ``root``; ``check_counts`` compares images and classes with the published."""
        root = Path(root).expanduser()
        try:
            if problem := self.problem(root):
                raise DataError(problem)
            table = self.reader(root)
            published = self.counts if check_counts else {}
            for split, (images, classes) in published.items():
                labels = table.labels[table.splits == split]
                present, lacking = len(np.unique(labels)), images - len(labels)
                if present != classes or not 0 <= lacking <= TOLERANCE * images:
                    found = f"{split} has {len(labels):,} images of {present:,} classes"
                    raise DataError(f"{found}, published are {images:,} of {classes:,}")
                if lacking:
                    notice(f"{self.title}: {lacking} of the {images:,} published {split} images are missing")
        except DataError as error:
            raise DataError(f"{self.title} in {str(root)!r}: {error}\n{self.expected_layout()}") from error
        return table

    def find(self, data_root: str | Path) -> Path | None:
        """The benchmark's folder below ``data_root``, or ``data_root`` itself; if possible one with all key files."""
        root = Path(data_root).expanduser()
        names = list(dict.fromkeys(folder.casefold() for folder in self.folders))
        top = [root] if root.is_dir() and root.resolve().name.casefold() in names else []
        top += _subfolders(root, names)
        inner = [below for folder in top for below in _subfolders(folder, [*names, *self.inner_folders])]
        return min([*top, *inner], key=lambda folder: bool(self.missing(folder)), default=None)

    def problem(self, folder: Path) -> str | None:
        """A clause that names the key files missing in ``folder``."""
        lacking = self.missing(folder)
        return f"there is no {', no '.join(lacking)}" if lacking else None

    def expected_layout(self) -> str:
        """For messages: the layout, where the files are published and how to get them."""
        text = f"Expected layout:\n{textwrap.indent(self.layout.strip(), '  ')}\nPublished at {self.home}"
        return f"{text}\nTo get it: {self.how_to_get}" if self.how_to_get else text

    @property
    def how_to_get(self) -> str:
        """How to bring it to this machine; empty where the package cannot help."""
        by_hand = f"bring {self.archives} and: nearkin datasets --unpack FILE" if self.archives else ""
        return f"nearkin datasets --download {self.name}, or {by_hand}" if self.address else by_hand


def _subfolders(folder: Path, names: list[str]) -> list[Path]:
    """The subfolders with one of the (lower-case) names, in the order of the names."""
    try:
        with os.scandir(folder) as entries:
            present = sorted((entry.name.casefold(), entry.name) for entry in entries if entry.is_dir())
    except OSError:
        return []
    return [folder / spelling for name in names for key, spelling in present if key == name]


def read_rows(path: Path, columns: Sequence[str], *, header: int = 0) -> list[list[str]]:
    """The fields of every line that is not blank; only the last field may contain spaces.

    With ``header``, that line (counted from 1) must name the columns, and rows begin below it.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {path.name}: {error}") from error
    if header and (len(lines) < header or lines[header - 1].split() != list(columns)):
        raise DataError(f"{path.name} line {header}: the header '{' '.join(columns)}' is missing")
    rows = []
    for line, content in enumerate(lines[header:], start=header + 1):
        fields = content.strip().split(maxsplit=len(columns) - 1)
        if 0 < len(fields) < len(columns):
            raise DataError(f"{path.name} line {line}: expected '{' '.join(columns)}', got {content.strip()!r}")
        if fields:
            rows.append(fields)
    return rows
