"""File names as people write them: their order, their spelling, and whether the files that a list names exist."""

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


def printable(name: str) -> str:
    """A file name that can be printed and written as UTF-8.

    File names in an older encoding reach Python with their odd bytes hidden in surrogates, which no UTF-8 file accepts.

    >>> printable(b"K\\xe4se".decode("utf-8", "surrogateescape"))
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
    return unicodedata.normalize("NFC", printable(name).strip())


def some_of(names: Sequence[str], *, most: int = 10) -> str:
    """The first names, one to an indented line, and how many more there are.

    >>> print(some_of(["a.jpg", "b.jpg", "c.jpg"], most=2))
      a.jpg
      b.jpg
      … and 1 more
    """
    more = [f"… and {len(names) - most:,} more"] if len(names) > most else []
    return "\n".join(f"  {line}" for line in (*names[:most], *more))


def existing_images(
    base: Path, names: Sequence[str], *, listed_in: str, lines: Sequence[int] | None = None, advice: str = ""
) -> list[Path]:
    """The images' paths below ``base``, or an error that says how many are missing and names the first ten.

    Every folder is read once, because asking for a hundred thousand files one by one takes minutes on a network file
    system. A name matches whichever way its accents are composed.
    """
    folders: dict[str, dict[str, os.DirEntry[str]]] = {}

    def entries_of(folder: str) -> dict[str, os.DirEntry[str]]:
        """What a folder holds, by its spelling and by the composed one."""
        if folder not in folders:
            try:
                with os.scandir(folder) as entries:
                    exact = {entry.name: entry for entry in entries}
            except (FileNotFoundError, NotADirectoryError):
                exact = {}
            except OSError as error:
                raise DataError(f"cannot read the folder {folder!r}: {error.strerror or error}") from error
            folders[folder] = {unicodedata.normalize("NFC", name): entry for name, entry in exact.items()} | exact
        return folders[folder]

    def spelled(path: str) -> str:
        """A path as the disk spells it, as far as it exists."""
        folder, name = os.path.split(path)
        if folder == path:
            return path
        if not folders.get(folder) and not os.path.isdir(folder):
            folder = spelled(folder)
        entry = entries_of(folder).get(name) or entries_of(folder).get(unicodedata.normalize("NFC", name))
        return os.path.join(folder, name if entry is None else entry.name)

    def exists(path: str) -> bool:
        folder, name = os.path.split(path)
        entry = entries_of(folder).get(name)
        # On a file system that ignores case, a file may be there under a spelling that the listing does not show.
        return os.path.isfile(path) if entry is None else not entry.is_dir()

    paths = [spelled(os.path.join(base, name)) if "\0" not in name else "" for name in names]
    shown = names if lines is None else [f"line {line}: {name}" for line, name in zip(lines, names, strict=True)]
    missing = [name for name, path in zip(shown, paths, strict=True) if not path or not exists(path)]
    if missing:
        raise DataError(
            f"{len(missing):,} of the {len(names):,} images listed in {listed_in} are missing "
            f"(paths are relative to {str(base)!r}{advice}):\n{some_of(missing)}"
        )
    return [Path(path) for path in paths]
