"""Images in folders: a table from one subfolder per class, and file names as people write them."""

from __future__ import annotations

import difflib
import os
import re
import unicodedata
import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from nearkin.data.images import ARCHIVE_ENDINGS, MANIFEST_ENDINGS, NOT_IMAGES, UNREADABLE_PHOTOS, image_extensions
from nearkin.data.table import SPLITS, ImageTable, LeftOut
from nearkin.errors import DataError, RecipeError, did_you_mean

SPLIT_FOLDERS = {split: split for split in SPLITS} | {"valid": "validation", "val": "validation"}

_FORMATS = "jpg, png, webp, gif, tif, bmp, avif and what else Pillow reads"

ClassFolders = Literal["deepest", "top"]
"""Which folders are the classes where folders of images lie inside each other."""


def read_folder(
    root: str | Path, *, name: str | None = None, class_folders: ClassFolders | None = None, warn: bool = True
) -> ImageTable:
    """Read a folder that has one subfolder per class, named after it.

    Everything is in the split ``train`` (a protocol divides it later), unless the top folders are called ``train``,
    ``test``, ``validation`` (``val``, ``valid``), ``query`` or ``gallery`` and hold the class folders. Hidden files
    are ignored. Files that are no images, and images in no class folder, are counted in the table's ``left_out``; a
    warning names those that are photos. An image's id is its path below ``root``.

    Args:
        root: the folder.
        name: what to call the table; the folder's own name when None.
        class_folders: which folders are the classes where a class folder holds folders of images. ``deepest``: every
            folder that images lie in, named by its path below the root or split (``Fruit/Apple``). ``top``: the
            folders at the top, with everything below them. None: there must be no such folders.
        warn: whether to warn of photos that are left out; not needed where ``left_out`` is reported.

    Raises:
        DataError: when there is no such folder, or it is not laid out like this, or has fewer than two classes.

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
    root = existing_folder(root)
    tree, others = _scan_all(root)
    if not tree.folders:
        what = f"{len(tree.images):,} images but no class folders" if tree.images else f"no images{_listed(others)}"
        raise DataError(f"{str(root)!r} holds {what}; {_expected_layout(root)}")

    splits = _split_folders(tree)
    tops = splits or [tree]
    stray = list(tree.rows())
    if splits:
        no_splits = [folder for top in tree.folders if top.key not in SPLIT_FOLDERS for folder in top.with_images()]
        stray += [image for folder in (*splits, *no_splits) for image in folder.rows()]
    if class_folders is None:
        _check_flat(root, [(top, folder) for top in tops for folder in top.folders])

    rows = [
        (SPLIT_FOLDERS[top.key] if splits else "train", _label(folder, top, class_folders), *image)
        for top in tops
        for class_folder in top.folders
        for folder in class_folder.with_images()
        for image in folder.rows()
    ]
    in_split, labels, ids, images = zip(*rows, strict=True)
    classes = sorted(set(labels), key=natural_key)
    if len(classes) < 2:
        raise DataError(
            f"{str(root)!r} has images of one class only ({classes[0]!r}), at least two are needed; "
            f"{_expected_layout(root)}"
        )
    left_out = []
    if stray:
        left_out.append(LeftOut(len(stray), "images", "in no class folder", stray[0][0], is_photo=True))
    # Archives made on macOS bring a folder of hidden files along.
    if empty := [folder for top in tops for folder in top.empty if not folder.startswith("__")]:
        left_out.append(LeftOut(len(empty), "folders", "without an image that can be read", empty[0]))
    left_out += others
    if warn and (lost := [str(files) for files in left_out if files.is_photo]):
        warnings.warn(f"left out of {str(root)!r}: {'; '.join(lost)}", stacklevel=2)
    return ImageTable.build(
        name or printable(root.resolve().name),
        images,
        labels,
        splits=in_split,
        ids=ids,
        class_names=classes,
        left_out=left_out,
    )


def list_images(root: str | Path) -> list[Path]:
    """Every image at any depth below ``root``, in natural order, hidden files left out.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as root:
    ...     for file in ("b10.jpg", "b9.PNG", "notes.txt"):
    ...         Path(root, file).touch()
    ...     [image.name for image in list_images(root)]
    ['b9.PNG', 'b10.jpg']
    """
    return [Path(image) for image in folder_images(root).images]


def folder_images(root: str | Path, *, class_folders: ClassFolders | None = None) -> ImageTable:
    """Every image at any depth below ``root`` whatever the layout, labelled by its folder or, in none, by ``""``.

    The label is the folder's path below the root or split, with ``class_folders="top"`` only the first part of it.
    """
    root = existing_folder(root)
    tree, others = _scan_all(root)
    if not (tree.images or tree.folders):
        raise DataError(f"{str(root)!r} holds no images ({_FORMATS}){_listed(others)}")
    try:
        splits = _split_folders(tree)
    except DataError:
        splits = []
    rows = []
    for folder in tree.with_images():
        top = next((split for split in splits if folder.below_root.startswith(split.below_root)), tree)
        rows += [(_label(folder, top, class_folders), *image) for image in folder.rows()]
    labels, ids, images = zip(*rows, strict=True)
    name = printable(root.resolve().name)
    return ImageTable.build(name, images, labels, splits=["test"] * len(images), ids=ids, left_out=others)


def existing_folder(root: str | Path) -> Path:
    """``root``, if it is a folder; else an error that says what it is, or what was probably meant."""
    root = Path(root).expanduser()
    if root.is_dir():
        return root
    if root.exists():
        advice = "a folder is needed"
        if root.suffix.lower() in MANIFEST_ENDINGS:
            advice = "read a list of images with nearkin.data.manifest.read_manifest"
        elif root.suffix.lower() in ARCHIVE_ENDINGS:
            advice = "unpack it, and give the folder that it unpacks to"
        raise DataError(f"{str(root)!r} is a file; {advice}")
    raise DataError(f"there is no folder {str(root)!r}{suggest_folder(root)}")


def suggest_folder(missing: Path) -> str:
    """A clause on the folder that was probably meant, next to the first part of the path that does not exist."""
    while not missing.parent.exists():
        missing = missing.parent
    try:
        neighbours = [entry.name for entry in os.scandir(missing.parent) if entry.is_dir()]
    except OSError:
        return ""
    by_key = {folder.casefold(): folder for folder in sorted(neighbours)}
    near = difflib.get_close_matches(missing.name.casefold(), by_key, n=1)
    return f"; did you mean {str(missing.parent / by_key[near[0]])!r}?" if near else ""


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

    def rows(self) -> Iterator[tuple[str, Path]]:
        """Id and path of the images directly in this folder."""
        for image in self.images:
            yield self.below_root + printable(image), self.path / image

    def with_images(self) -> Iterator[Folder]:
        """This folder and those below it that have images directly in them."""
        if self.images:
            yield self
        for folder in self.folders:
            yield from folder.with_images()


def _scan_all(root: Path) -> tuple[Folder, tuple[LeftOut, ...]]:
    """A folder with all below it, and by their endings the files that are no images; hidden files do not count."""
    others: dict[str, list[str]] = defaultdict(list)
    tree = _scan(root, below_root="", above=frozenset(), others=others)
    left_out = [
        LeftOut(len(names), ending, UNREADABLE_PHOTOS.get(ending, NOT_IMAGES), min(names), ending in UNREADABLE_PHOTOS)
        for ending, names in others.items()
    ]
    return tree, tuple(sorted(left_out, key=lambda files: (-files.count, files.what)))


def _scan(path: Path, *, below_root: str, above: frozenset[tuple[int, int]], others: dict[str, list[str]]) -> Folder:
    """``above`` are the folders that it lies in, against links that go in circles."""
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
                    what = "broken links" if ending in extensions else ending or "files without an ending"
                    others[what].append(below_root + printable(entry.name))
    except OSError as error:
        raise DataError(f"cannot read the folder {str(path)!r}: {error.strerror or error}") from error
    scanned = [
        _scan(path / folder, below_root=f"{below_root}{printable(folder)}/", above=here, others=others)
        for folder in sorted(folders, key=natural_key)
    ]
    return Folder(
        path=path,
        below_root=below_root,
        images=tuple(sorted(images, key=natural_key)),
        folders=tuple(folder for folder in scanned if folder.images or folder.folders),
        empty=tuple(folder.below_root for folder in scanned if not folder.images and not folder.folders),
    )


def _label(folder: Folder, top: Folder, class_folders: ClassFolders | None) -> str:
    """The class of the images in a folder: its path below the root or split, or the first part of it."""
    parts = [class_name(part) for part in folder.below_root[len(top.below_root) :].split("/")[:-1]]
    return "/".join(parts[:1] if class_folders == "top" else parts)


def _check_flat(root: Path, folders: list[tuple[Folder, Folder]]) -> None:
    """Refuse folders of images inside class folders: only the user can say whether they are classes."""
    nested = [inner for _, folder in folders if folder.folders for inner in folder.with_images()]
    if not nested:
        return
    deepest = {_label(inner, top, None) for top, folder in folders for inner in folder.with_images()}
    tops = sorted({_label(folder, top, "top") for top, folder in folders}, key=natural_key)
    example = next(name for name in sorted(deepest, key=natural_key) if "/" in name)
    listed = [f"{folder.below_root} ({len(folder.images):,} images)" for folder in nested]
    advice = ""
    if len(folders) == 1 and len(folders[0][1].folders) > 1:
        advice = f" Or give the one folder that everything lies in: {str(folders[0][1].path)!r}."
    raise DataError(
        f"{str(root)!r} has folders of images inside its class folders:\n{some_of(listed, most=5)}\n"
        f"Which are the classes? With --class-folders deepest every folder that images lie in, {len(deepest):,} in "
        f"all, such as {example!r}; with --class-folders top the {len(tops):,} at the top, such as {tops[0]!r}, each "
        f"with all below it (in a recipe data.class_folders, from Python class_folders).{advice}"
    )


def _split_folders(tree: Folder) -> list[Folder]:
    """The top folders that are splits rather than classes; none when the top folders are the classes.

    One folder called ``train`` among others is a class (there are photographs of trains).
    """
    named = [folder for folder in tree.folders if folder.key in SPLIT_FOLDERS]
    if len(named) < len(tree.folders) and len(named) < 2:
        return []
    flat = [folder.path.name for folder in named if not folder.folders]
    if flat and (len(flat) < len(named) or len(named) == len(tree.folders)):
        raise DataError(
            f"{str(tree.path)!r} is divided into {', '.join(folder.path.name for folder in named)}, but "
            f"{', '.join(map(repr, flat))} must hold class folders, not images; {_expected_layout(tree.path)}"
        )
    return [] if flat else named


def _listed(others: tuple[LeftOut, ...]) -> str:
    """What a folder without images does hold."""
    listed = "; ".join(f"{files.count:,} {files.what}, {files.reason}" for files in others[:3])
    return f" ({listed})" if listed else ""


def _expected_layout(root: Path) -> str:
    name = printable(root.resolve().name) or "data"
    return (
        "one folder per class is expected:\n"
        f"  {name}/\n    apple/\n      photo1.jpg\n      photo2.jpg\n    pear/\n      photo3.jpg\n"
        f"or the same below {name}/train and {name}/test. Images are {_FORMATS}."
    )


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
