"""What the cache holds, and clearing it: images that were decoded or rendered once, and can be again."""

from __future__ import annotations

import contextlib
import re
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nearkin.data.cache import cache_root
from nearkin.data.packs import no_writer, read_packs
from nearkin.errors import DataError

DECODED, GLYPHS = "decoded", "glyphs"

_PACKS = re.compile(r"pixels\d+-side\d+")
_ENDINGS = (".bin", ".npz", ".tmp", ".lock")


@dataclass(frozen=True)
class CachePart:
    """One kind of content: what it is, how many images and bytes, and its files."""

    what: str
    images: int
    bytes: int
    files: tuple[Path, ...]


@dataclass(frozen=True)
class CacheContents:
    """Where the cache lies and what is in it."""

    root: Path
    parts: tuple[CachePart, ...]

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.parts)

    @property
    def images(self) -> int:
        return sum(part.images for part in self.parts)


def cache_contents(root: Path | None = None) -> CacheContents:
    """What nearkin keeps below ``root``, by default the cache folder; files that are not its own do not count."""
    root = cache_root() if root is None else Path(root)
    parts = []
    for folder in _pack_folders(root):
        files = sorted(file for file in folder.iterdir() if file.suffix in _ENDINGS and file.is_file())
        parts.append(
            _part(f"decoded, shorter side {folder.name.partition('-side')[2]}", len(read_packs(folder)), files)
        )
    if known := [file for file in (root / DECODED).glob("files.json*") if file.is_file()]:
        parts.append(_part("which files have been decoded", 0, known))
    if drawn := sorted((root / GLYPHS).glob("glyphs-*.*")):
        parts.append(_part("Glyphs, rendered", sum(map(_glyphs_in, drawn)), drawn))
    return CacheContents(root, tuple(parts))


def clear_cache(root: Path | None = None) -> CacheContents:
    """Remove what :func:`cache_contents` lists, and nothing else; returns what there was.

    Runs that read the cache keep what they have opened. While another process writes to it, nothing is removed.
    """
    contents = cache_contents(root)
    with contextlib.ExitStack() as stack:
        for folder in _pack_folders(contents.root):
            if not stack.enter_context(no_writer(folder)):
                raise DataError(
                    f"another process is decoding images into {str(folder)!r}: wait until it is done, then clear again"
                )
        # Listed anew under the locks: packs may have been added since.
        contents = cache_contents(contents.root)
        for file in (file for part in contents.parts for file in part.files):
            try:
                file.unlink(missing_ok=True)
            except OSError as error:
                raise DataError(f"cannot remove {str(file)!r} ({error.strerror or error})") from error
    for folder in (*_pack_folders(contents.root), contents.root / DECODED, contents.root / GLYPHS):
        with contextlib.suppress(OSError):
            folder.rmdir()
    return contents


def _pack_folders(root: Path) -> list[Path]:
    return sorted(folder for folder in (root / DECODED).glob("pixels*") if _PACKS.fullmatch(folder.name))


def _part(what: str, images: int, files: Iterable[Path]) -> CachePart:
    total, kept = 0, []
    for file in files:
        with contextlib.suppress(FileNotFoundError):  # a temporary file that has got its name meanwhile
            total += file.stat().st_size
            kept.append(file)
    return CachePart(what, images, total, tuple(kept))


def _glyphs_in(file: Path) -> int:
    try:
        with np.load(file, allow_pickle=False) as kept:
            return len(kept["labels"])
    except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile):
        return 0
