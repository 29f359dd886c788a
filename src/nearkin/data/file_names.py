"""File names as people write them: their order, their spelling, and whether the files that a list names are there."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nearkin.errors import DataError

_DIGITS = re.compile(r"([0-9]+)")


def natural_key(text: str) -> tuple[tuple[Any, ...], str]:
    """A sort key that counts: ``img2`` before ``img10``, whatever the case.

    >>> sorted(["img10", "Img2", "img1"], key=natural_key)
    ['img1', 'Img2', 'img10']
    """
    parts = _DIGITS.split(unicodedata.normalize("NFC", text).casefold())
    # A number without its leading zeros is larger when it is longer, so it need not become an int, which may overflow.
    numbers = [part.lstrip("0") for part in parts[1::2]]
    pairs = zip(numbers, parts[2::2], strict=True)
    return (parts[0], *((len(number), number, word) for number, word in pairs)), text


def readable(name: str) -> str:
    """A file name that can be printed and written as UTF-8.

    File names in an older encoding reach Python with their odd bytes hidden in surrogates, which no UTF-8 file accepts.

    >>> readable(b"K\\xe4se".decode("utf-8", "surrogateescape"))
    'Käse'
    """
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return name.encode("utf-8", "surrogateescape").decode("latin-1")
    return name


def class_name(name: str) -> str:
    """A class name with one spelling: macOS writes ``ä`` as two code points, other systems as one.

    >>> class_name("Ka\\u0308se") == class_name("K\\u00e4se")
    True
    """
    return unicodedata.normalize("NFC", readable(name).strip())


def some_of(names: Sequence[str], *, most: int = 10) -> str:
    """The first names, one to an indented line, and how many more there are.

    >>> print(some_of(["a.jpg", "b.jpg", "c.jpg"], most=2))
      a.jpg
      b.jpg
      … and 1 more
    """
    lines = [f"  {name}" for name in names[:most]]
    if len(names) > most:
        lines.append(f"  … and {len(names) - most:,} more")
    return "\n".join(lines)


class Listing:
    """Finds the files that a list names, below ``base``.

    Every folder is read once, because asking after a hundred thousand files one by one takes minutes on a network
    file system. A name matches whichever way its accents are composed.
    """

    def __init__(self, base: Path) -> None:
        self.base = base
        self._folders: dict[str, tuple[Path, dict[str, str]] | None] = {}

    def __getitem__(self, name: str) -> Path | None:
        """The path of the file listed as ``name``, or None where there is none."""
        folder, file = os.path.split(name)
        found = self._folder(folder) if file and "\0" not in name else None
        if found is None:
            return None
        path, contents = found
        actual = contents.get(file) or contents.get(unicodedata.normalize("NFC", file))
        if actual is not None:
            return path / actual
        # On a file system that ignores case, a file may be there under a spelling that the listing does not show.
        return path / file if os.path.isfile(path / file) else None

    def _folder(self, name: str) -> tuple[Path, dict[str, str]] | None:
        if name not in self._folders:
            path = self._spelled(name)
            contents = _files(path)
            self._folders[name] = None if contents is None else (Path(path), contents)
        return self._folders[name]

    def _spelled(self, name: str) -> str:
        """The path of a folder below the base, as the disk spells it."""
        path = os.path.join(self.base, name)
        parent, last = os.path.split(name)
        if os.path.isdir(path) or parent == name:
            return path
        above = self._spelled(parent)
        wanted = unicodedata.normalize("NFC", last)
        entries = os.listdir(above) if os.path.isdir(above) else []
        return os.path.join(above, next((e for e in entries if unicodedata.normalize("NFC", e) == wanted), last))


def existing_images(
    base: Path, names: Sequence[str], *, listed_in: str, lines: Sequence[int] | None = None, advice: str = ""
) -> list[Path]:
    """The images' paths below ``base``, or an error that says how many are missing and names the first ten."""
    listing = Listing(base)
    found = [listing[name] for name in names]
    shown = names if lines is None else [f"line {line}: {name}" for line, name in zip(lines, names, strict=True)]
    missing = [name for name, image in zip(shown, found, strict=True) if image is None]
    if missing:
        raise DataError(
            f"{len(missing):,} of the {len(names):,} images listed in {listed_in} are missing "
            f"(paths are relative to {str(base)!r}{advice}):\n{some_of(missing)}"
        )
    return [image for image in found if image is not None]


def _files(folder: str) -> dict[str, str] | None:
    """The files in a folder by their own spelling and by the composed one; None when there is no such folder."""
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if not entry.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise DataError(f"cannot read the folder {folder!r}: {error.strerror or error}") from error
    return {unicodedata.normalize("NFC", name): name for name in names} | {name: name for name in names}
