"""Images in folders: a table from one subfolder per class, and file names as people write them."""

from __future__ import annotations

import difflib
import functools
import os
import re
import unicodedata
import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from nearkin.data.images import NOT_IMAGES, UNREADABLE_PHOTOS, image_extensions, is_image_file
from nearkin.data.table import SPLITS, ImageTable, LeftOut
from nearkin.errors import DataError, RecipeError, did_you_mean

SPLIT_FOLDERS = {split: split for split in SPLITS} | {"valid": "validation", "val": "validation"}

_FORMATS = "jpg, png, webp, gif, tif, bmp, avif and what else Pillow reads"
_ARCHIVES = (".zip", ".tar", ".gz", ".tgz", ".bz2", ".xz", ".zst", ".7z", ".rar")
_SPREADSHEETS = (".xlsx", ".xls", ".ods", ".numbers")

ClassFolders = Literal["deepest", "top"]
"""Which folders are the classes where folders of images lie inside each other."""


def read_folder(root: str | Path, *, class_folders: ClassFolders | None = None, warn: bool = True) -> ImageTable:
    """Read a folder that has one subfolder per class, named after it.

    Every image is in the split ``train`` (a protocol divides it later), unless the top folders are called ``train``,
    ``test``, ``validation`` (``val``, ``valid``), ``query`` or ``gallery`` and hold the class folders. Hidden files
    are ignored. Other files that are not images, and images in no class folder, are counted in the table's
    ``left_out``. An image's id is its path below ``root``.

    Args:
        root: the folder.
        class_folders: which folders are the classes where class folders hold folders of images. ``deepest``: every
            folder with images, named by its path below the root or split (``Fruit/Apple``). ``top``: the folders at
            the top, with everything below them. None: such nested folders are an error.
        warn: whether to warn of photos that are left out; not needed where ``left_out`` is reported.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as root:
        ...     for file in ("apple/1.jpg", "pear/2.jpg", "pear/10.jpg"):
        ...         Path(root, file).parent.mkdir(exist_ok=True)
        ...         Path(root, file).touch()
        ...     table = read_folder(root)
        >>> table.class_names, table.ids
        (('apple', 'pear'), ('apple/1.jpg', 'pear/2.jpg', 'pear/10.jpg'))
    """
    if class_folders is not None and class_folders not in get_args(ClassFolders):
        raise RecipeError(f"no class_folders {class_folders!r}: {did_you_mean(class_folders, get_args(ClassFolders))}")
    tree = _scan(root)
    if not tree.tops:
        raise DataError(
            f"{str(root)!r} holds {len(tree.images[()]):,} images but no class folders; {_expected_layout(tree.root)} "
            f"If {tree.name!r} is one class of several, give the folder around it."
        )

    splits = _split_folders(tree)
    level = 1 if splits else 0
    class_paths = [path for path in tree.images if len(path) > level and (not splits or path[0] in splits)]
    if class_folders is None:
        _check_flat(tree, class_paths, level)

    rows = [
        (SPLIT_FOLDERS[path[0].casefold()] if splits else "train", _label(path[level:], class_folders), *image)
        for path in class_paths
        for image in tree.rows(path)
    ]
    in_split, labels, ids, images = zip(*rows, strict=True)
    classes = sorted(set(labels), key=natural_key)
    if len(classes) < 2:
        raise DataError(
            f"{str(root)!r} has images of one class only ({classes[0]!r}), at least two are needed; "
            f"{_expected_layout(tree.root)}"
        )
    left_out = list(tree.other_files)
    used = set(class_paths)
    if stray := [image for path in tree.images if path not in used for image, _ in tree.rows(path)]:
        left_out.insert(0, LeftOut(len(stray), "images", "in no class folder", stray[0], is_photo=True))
    if warn and (lost := [str(files) for files in left_out if files.is_photo]):
        warnings.warn(f"left out of {str(root)!r}: {'; '.join(lost)}", stacklevel=2)
    return ImageTable.build(tree.name, images, labels, splits=in_split, ids=ids, class_names=classes, left_out=left_out)


def list_images(root: str | Path) -> list[Path]:
    """Every image at any depth below ``root``, in natural order, without hidden files."""
    return [Path(image) for image in folder_images(root).images]


def folder_images(root: str | Path, *, class_folders: ClassFolders | None = None) -> ImageTable:
    """Every image at any depth below ``root``, labelled by its folder; images directly in ``root`` are labelled ``""``.

    The label is the folder's path below the root or split, with ``class_folders="top"`` only its first part.
    """
    tree = _scan(root)
    try:
        tops = _split_folders(tree)
    except DataError:
        tops = []
    rows = []
    for path in tree.images:
        label = _label(path[1:] if path and path[0] in tops else path, class_folders)
        rows += [(label, "test", *image) for image in tree.rows(path)]
    labels, splits, ids, images = zip(*rows, strict=True)
    return ImageTable.build(tree.name, images, labels, splits=splits, ids=ids, left_out=tree.other_files)


def check_is_list(path: Path) -> None:
    """Refuse a file that cannot be a list of images; the error says what to give instead."""
    ending = path.suffix.lower()
    if ending in _SPREADSHEETS:
        raise DataError(f"{str(path)!r} is a spreadsheet: save it as 'CSV UTF-8', and give that file")
    if ending in _ARCHIVES:
        raise DataError(f"{str(path)!r} is an archive: unpack it, and give the folder that it unpacks to")
    if is_image_file(path):
        advice = "give a folder with one folder per class, or a list of images with their labels (CSV or JSON Lines)"
        raise DataError(f"{str(path)!r} is one image: {advice}")


def suggest_path(missing: Path) -> str:
    """A clause with existing paths similar to ``missing``, by the first part of it that does not exist."""
    below: list[str] = []
    while not missing.parent.exists():
        below.insert(0, missing.name)
        missing = missing.parent
    try:
        names = {name.casefold(): name for name in sorted(os.listdir(missing.parent))}
    except OSError:
        return ""
    near = [missing.parent / names[name] for name in difflib.get_close_matches(missing.name.casefold(), names)]
    near = [path.joinpath(*below) if path.joinpath(*below).exists() else path for path in near]
    return f"; did you mean {' or '.join(repr(str(path)) for path in near)}?" if near else ""


FolderPath = tuple[str, ...]
"""The names of the folders on the way from the root to a folder; the root itself is ``()``."""


@dataclass(frozen=True)
class _Tree:
    """The images below ``root`` by their folder, in natural order, and the files that are no images."""

    root: Path
    images: dict[FolderPath, list[str]]
    other_files: tuple[LeftOut, ...]

    @property
    def name(self) -> str:
        return printable(self.root.resolve().name)

    @property
    def tops(self) -> list[str]:
        """The top folders that have images at any depth."""
        return list(dict.fromkeys(path[0] for path in self.images if path))

    def rows(self, path: FolderPath) -> Iterator[tuple[str, Path]]:
        """Id and path of the images directly in a folder."""
        for image in self.images[path]:
            yield "/".join(map(printable, (*path, image))), self.root.joinpath(*path, image)


def _scan(root: str | Path) -> _Tree:
    """The images below a folder; where there are none, an error says what is there instead."""
    root = Path(root).expanduser()
    if not root.exists():
        raise DataError(f"there is no folder {str(root)!r}{suggest_path(root)}")
    if not root.is_dir():
        check_is_list(root)
        raise DataError(f"{str(root)!r} is a file: give a folder, or read a list of images with nearkin.read_manifest")
    images: dict[FolderPath, list[str]] = {}
    other_files: dict[str, list[str]] = defaultdict(list)
    extensions = image_extensions()

    def scan(path: FolderPath, above: frozenset[tuple[int, int]]) -> None:
        """``above`` are the folders around it, to stop at links that go in circles."""
        folder = root.joinpath(*path)
        inner, names = [], []
        try:
            status = os.stat(folder)
            if (status.st_dev, status.st_ino) in above:
                return
            with os.scandir(folder) as entries:
                for entry in entries:
                    ending = os.path.splitext(entry.name)[1].lower()
                    if entry.name.startswith("."):
                        continue
                    if entry.is_dir():
                        inner.append(entry.name)
                    elif ending in extensions and entry.is_file():
                        names.append(entry.name)
                    else:
                        what = "broken links" if ending in extensions else ending or "files without an ending"
                        other_files[what].append("/".join(map(printable, (*path, entry.name))))
        except OSError as error:
            raise DataError(f"cannot read the folder {str(folder)!r}: {error.strerror or error}") from error
        if names:
            images[path] = sorted(names, key=natural_key)
        for name in sorted(inner, key=natural_key):
            scan((*path, name), above | {(status.st_dev, status.st_ino)})

    scan((), frozenset())
    left_out = [
        LeftOut(len(names), ending, UNREADABLE_PHOTOS.get(ending, NOT_IMAGES), min(names), ending in UNREADABLE_PHOTOS)
        for ending, names in other_files.items()
    ]
    left_out.sort(key=lambda files: (-files.count, files.what))
    if not images:
        others = "; ".join(f"{files.count:,} {files.what}, {files.reason}" for files in left_out[:3])
        raise DataError(f"{str(root)!r} holds no images ({others or 'and no other files'}). Images are {_FORMATS}.")
    return _Tree(root, images, tuple(left_out))


def _label(path: FolderPath, class_folders: ClassFolders | None) -> str:
    """The class of a folder's images: the folder's path below the root or split, or the first part of it."""
    return "/".join(class_name(part) for part in (path[:1] if class_folders == "top" else path))


def _check_flat(tree: _Tree, class_paths: list[FolderPath], level: int) -> None:
    """Refuse folders of images inside class folders, as only the user can say whether they are classes."""
    nested = [path for path in class_paths if len(path) > level + 1]
    if not nested:
        return
    deepest = {_label(path[level:], "deepest") for path in class_paths}
    tops = sorted({_label(path[level:], "top") for path in class_paths}, key=natural_key)
    listed = [f"{'/'.join(map(printable, path))}/ ({len(tree.images[path]):,} images)" for path in nested]
    advice = ""
    if len(tops) == 1 and len({path[: level + 2] for path in nested}) > 1:
        around = tree.root.joinpath(*nested[0][: level + 1])
        advice = f" Or give the one folder that everything lies in: {str(around)!r}."
    raise DataError(
        f"{str(tree.root)!r} has folders of images inside its class folders:\n{some_of(listed, most=5)}\n"
        f"Which are the classes? With --class-folders deepest every folder that images lie in, {len(deepest):,} in "
        f"all, such as {_label(nested[0][level:], 'deepest')!r}; with --class-folders top the {len(tops):,} at the "
        f"top, such as {tops[0]!r}, each with all below it (in a recipe data.class_folders, from Python "
        f"class_folders).{advice}"
    )


def _split_folders(tree: _Tree) -> list[str]:
    """The top folders that are splits rather than classes; none when the top folders are the classes.

    One folder called ``train`` among other names is a class (there are photographs of trains).
    """
    named = [top for top in tree.tops if top.casefold() in SPLIT_FOLDERS]
    if len(named) < len(tree.tops) and len(named) < 2:
        return []
    with_classes = {path[0] for path in tree.images if len(path) > 1}
    flat = [top for top in named if top not in with_classes]
    if flat and (len(flat) < len(named) or len(named) == len(tree.tops)):
        raise DataError(
            f"{str(tree.root)!r} is divided into {', '.join(named)}, but {', '.join(map(repr, flat))} must hold class "
            f"folders, not images; {_expected_layout(tree.root)}"
        )
    return [] if flat else named


def _expected_layout(root: Path) -> str:
    name = printable(root.resolve().name) or "data"
    return (
        "one folder per class is expected:\n"
        f"  {name}/\n    apple/\n      photo1.jpg\n      photo2.jpg\n    pear/\n      photo3.jpg\n"
        f"or the same below {name}/train and {name}/test. Images are {_FORMATS}."
    )


def _composed(text: str) -> str:
    return unicodedata.normalize("NFC", text)


def natural_key(text: str) -> tuple[tuple[Any, ...], str]:
    """A sort key that counts: ``img2`` before ``img10``, whatever the case.

    >>> sorted(["img10", "Img2", "img1"], key=natural_key)
    ['img1', 'Img2', 'img10']
    """
    parts = re.split("([0-9]+)", _composed(text).casefold())
    # Without leading zeros a longer number is larger, so none must become an int, whose length Python limits.
    numbers = [part.lstrip("0") for part in parts[1::2]]
    pairs = zip(numbers, parts[2::2], strict=True)
    return (parts[0], *((len(number), number, word) for number, word in pairs)), text


def printable(name: str) -> str:
    """A file name that can be written as UTF-8; names in an older encoding reach Python with surrogates.

    >>> printable(b"K\\xe4se".decode("utf-8", "surrogateescape"))
    'Käse'
    """
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return name.encode("utf-8", "surrogateescape").decode("latin-1")
    return name


def class_name(name: str) -> str:
    """A class name with one spelling: macOS writes ``ä`` as two code points, other systems as one."""
    return _composed(printable(name).strip())


def some_of(names: Sequence[str], *, most: int = 10) -> str:
    """The first names, each on an indented line, and how many more there are.

    >>> print(some_of(["a.jpg", "b.jpg", "c.jpg"], most=2))
      a.jpg
      b.jpg
      … and 1 more
    """
    more = [f"… and {len(names) - most:,} more"] if len(names) > most else []
    return "\n".join(f"  {line}" for line in (*names[:most], *more))


def existing_images(
    base: Path, names: Sequence[str], *, listed_in: str, lines: Sequence[int] | None = None
) -> list[Path]:
    """The images' paths below ``base``; if some are missing, an error says how many and names the first ten.

    A name matches however its accents are composed. Every folder is listed once, as looking up a hundred thousand files
    one by one takes minutes on a network file system.
    """

    @functools.cache
    def entries_of(folder: str) -> dict[str, os.DirEntry[str]]:
        """The entries of a folder, by their name and by its composed spelling."""
        try:
            with os.scandir(folder) as entries:
                exact = {entry.name: entry for entry in entries}
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except OSError as error:
            raise DataError(f"cannot read the folder {folder!r}: {error.strerror or error}") from error
        return {_composed(name): entry for name, entry in exact.items()} | exact

    def entry_of(path: str) -> os.DirEntry[str] | None:
        folder, name = os.path.split(path)
        entries = entries_of(spelled(folder))
        return entries.get(name) or entries.get(_composed(name))

    @functools.cache
    def spelled(folder: str) -> str:
        """A folder's path as the disk spells it."""
        if os.path.isdir(folder) or os.path.dirname(folder) == folder:
            return folder
        entry = entry_of(folder)
        return folder if entry is None else entry.path

    def find(path: str) -> str | None:
        if entry := entry_of(path):
            return None if entry.is_dir() else entry.path
        # A file system that ignores case may have the file under a spelling that the listing does not show.
        return path if os.path.isfile(path) else None

    paths = [find(os.path.join(base, name)) if "\0" not in name else None for name in names]
    shown = names if lines is None else [f"line {line}: {name}" for line, name in zip(lines, names, strict=True)]
    missing = [name for name, path in zip(shown, paths, strict=True) if path is None]
    if missing:
        raise DataError(
            f"{len(missing):,} of the {len(names):,} images listed in {listed_in} are missing; their paths start from "
            f"{str(base.absolute())!r}. Correct the paths, or bring the files:\n{some_of(missing)}"
        )
    return [Path(path) for path in paths if path is not None]
