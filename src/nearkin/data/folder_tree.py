"""What a folder holds: its images, the folders inside it, and the files that are no images."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from nearkin.data.formats import image_extensions, is_picture, why_left_out
from nearkin.data.listing import natural_key, readable
from nearkin.data.table import LeftOut
from nearkin.errors import DataError

_NO_ENDING = "extensionless files"
_BROKEN, _NOTHING_THERE = "broken links", "there is nothing behind them to read"


@dataclass(frozen=True)
class Folder:
    """A folder, the images in it and the folders in it that hold images at any depth; ``empty`` names the others."""

    path: Path
    below_root: str
    images: tuple[str, ...]
    folders: tuple[Folder, ...]
    empty: tuple[str, ...]

    @property
    def key(self) -> str:
        return self.path.name.casefold()

    def own_images(self) -> Iterator[tuple[str, Path]]:
        """Id and path of the images that lie in the folder itself."""
        for image in self.images:
            yield self.below_root + readable(image), self.path / image

    def holding_images(self) -> Iterator[Folder]:
        """This folder and those below it, as far as images lie directly in them."""
        if self.images:
            yield self
        for folder in self.folders:
            yield from folder.holding_images()


def scan(root: Path) -> tuple[Folder, tuple[LeftOut, ...]]:
    """A folder with all below it, and by their endings the files that are no images; hidden files do not count."""
    others: dict[str, list[str]] = defaultdict(list)
    tree = _scan(root, below_root="", above=frozenset(), others=others)
    left_out = [
        LeftOut(
            len(names), what, _NOTHING_THERE if what == _BROKEN else why_left_out(what), min(names), is_picture(what)
        )
        for what, names in others.items()
    ]
    return tree, tuple(sorted(left_out, key=lambda each: (-each.count, each.what)))


def _scan(path: Path, *, below_root: str, above: frozenset[tuple[int, int]], others: dict[str, list[str]]) -> Folder:
    """``above`` are the folders it lies in, against links that go in circles."""
    images: list[str] = []
    folders: list[str] = []
    extensions = image_extensions()
    try:
        status = os.stat(path)
        here = above | {(status.st_dev, status.st_ino)}
        with os.scandir(path) as entries:
            for entry in entries:
                ending = os.path.splitext(entry.name)[1].lower()
                if entry.name.startswith("."):
                    continue
                if entry.is_dir():
                    below = entry.stat()
                    if (below.st_dev, below.st_ino) not in here:
                        folders.append(entry.name)
                elif ending in extensions and entry.is_file():
                    images.append(entry.name)
                else:
                    what = _BROKEN if ending in extensions else ending or _NO_ENDING
                    others[what].append(below_root + readable(entry.name))
    except OSError as error:
        raise DataError(f"cannot read the folder {str(path)!r}: {error.strerror or error}") from error
    scanned = [
        _scan(path / folder, below_root=f"{below_root}{readable(folder)}/", above=here, others=others)
        for folder in sorted(folders, key=natural_key)
    ]
    return Folder(
        path=path,
        below_root=below_root,
        images=tuple(sorted(images, key=natural_key)),
        folders=tuple(folder for folder in scanned if folder.images or folder.folders),
        empty=tuple(folder.below_root for folder in scanned if not folder.images and not folder.folders),
    )
