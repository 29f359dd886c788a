"""A table of images from a folder with one subfolder per class."""

from __future__ import annotations

import difflib
import os
import warnings
from pathlib import Path
from typing import Literal, get_args

from nearkin.data.folder_tree import Folder, scan
from nearkin.data.formats import MANIFEST_ENDINGS, is_archive
from nearkin.data.listing import class_name, natural_key, readable, some_of
from nearkin.data.table import SPLITS, ImageTable, LeftOut
from nearkin.errors import DataError, RecipeError
from nearkin.suggest import did_you_mean

SPLIT_FOLDERS = {split: split for split in SPLITS} | {"valid": "validation", "val": "validation"}

_COMMON = "jpg, png, webp, gif, tif, bmp, avif and what else Pillow reads"

Kinds = Literal["deepest", "top"]
"""Which folders are the classes where folders of images lie inside each other."""


def read_folder(root: str | Path, *, name: str | None = None, kinds: Kinds | None = None) -> ImageTable:
    """Read a folder that has one subfolder per class, named after it.

    Everything is in the split ``train`` (a protocol divides it later), unless the top folders are called ``train``,
    ``test``, ``validation`` (``val``, ``valid``), ``query`` or ``gallery`` and hold the class folders. Hidden files
    are left out; so are files that are no images, and images in no class folder, which the table's ``left_out`` counts
    and, where they are pictures, a warning names. An image's id is its path below ``root``.

    Args:
        root: the folder.
        name: what to call the table; the folder's own name when None.
        kinds: which folders are the classes where a class folder holds folders of images. ``deepest``: every folder
            that images lie in, named by its path below the root or split (``Fruit/Apple``). ``top``: the folders at
            the top, with everything below them. None: there must be no such folders.

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
    table = folder_table(root, name=name, kinds=kinds)
    if lost := [str(each) for each in table.left_out if each.picture]:
        warnings.warn(f"left out of {str(root)!r}: {'; '.join(lost)}", stacklevel=2)
    return table


def folder_table(root: str | Path, *, name: str | None = None, kinds: Kinds | None = None) -> ImageTable:
    """:func:`read_folder` without the warning, for those who say themselves what was left out."""
    if kinds is not None and kinds not in get_args(Kinds):
        raise RecipeError(f"no kinds {kinds!r}: {did_you_mean(str(kinds), get_args(Kinds))}")
    root = existing_folder(root)
    tree, others = scan(root)
    if not tree.folders:
        what = f"{len(tree.images):,} images but no class folders" if tree.images else f"no images{_beside(others)}"
        raise DataError(f"{str(root)!r} holds {what}; {_expected_layout(root)}")

    splits = _split_folders(tree)
    tops = splits or [tree]
    class_folders = [(top, folder) for top in tops for folder in top.folders]
    strays = list(tree.own_images())
    if splits:
        no_splits = [folder for top in tree.folders if top.key not in SPLIT_FOLDERS for folder in top.holding_images()]
        strays += [image for folder in (*splits, *no_splits) for image in folder.own_images()]
    if kinds is None:
        _check_flat(root, class_folders)

    rows = [
        (SPLIT_FOLDERS[top.key] if splits else "train", _label(kind, top, kinds), *image)
        for top, folder in class_folders
        for kind in folder.holding_images()
        for image in kind.own_images()
    ]
    in_split, labels, ids, images = zip(*rows, strict=True)
    classes = sorted(set(labels), key=natural_key)
    if len(classes) < 2:
        raise DataError(
            f"{str(root)!r} has images of one class only ({classes[0]!r}), at least two are needed; "
            f"{_expected_layout(root)}"
        )
    left_out = []
    if strays:
        left_out.append(LeftOut(len(strays), "images", "in no class folder", strays[0][0], picture=True))
    # Archives made on macOS bring a folder of hidden files along.
    if empty := [folder for top in tops for folder in top.empty if not folder.startswith("__")]:
        left_out.append(LeftOut(len(empty), "folders", "without an image that can be read", empty[0]))
    return ImageTable.build(
        name or readable(root.resolve().name),
        images,
        labels,
        splits=in_split,
        ids=ids,
        class_names=classes,
        left_out=(*left_out, *others),
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


def folder_images(root: str | Path, *, kinds: Kinds | None = None) -> ImageTable:
    """Every image at any depth below ``root`` whatever the layout, labelled by its folder or, in none, by ``""``.

    The label is the folder's path below the root or split, with ``kinds="top"`` only the first part of it.
    """
    root = existing_folder(root)
    tree, others = scan(root)
    if not (tree.images or tree.folders):
        raise DataError(f"{str(root)!r} holds no images ({_COMMON}){_beside(others)}")
    try:
        splits = _split_folders(tree)
    except DataError:
        splits = []
    rows = []
    for folder in tree.holding_images():
        top = next((split for split in splits if folder.below_root.startswith(split.below_root)), tree)
        rows += [(_label(folder, top, kinds), *image) for image in folder.own_images()]
    labels, ids, images = zip(*rows, strict=True)
    name = readable(root.resolve().name)
    return ImageTable.build(name, images, labels, splits=["test"] * len(images), ids=ids, left_out=others)


def _label(folder: Folder, top: Folder, kinds: Kinds | None) -> str:
    """The class of the images in a folder: its path below the root or split, or the first part of it."""
    parts = [class_name(part) for part in folder.below_root[len(top.below_root) :].split("/")[:-1]]
    return "/".join(parts[:1] if kinds == "top" else parts)


def _check_flat(root: Path, class_folders: list[tuple[Folder, Folder]]) -> None:
    """Refuse folders of images inside class folders: whether they are classes is not for us to guess."""
    nested = [kind for _, folder in class_folders if folder.folders for kind in folder.holding_images()]
    if not nested:
        return
    deepest = {_label(kind, top, None) for top, folder in class_folders for kind in folder.holding_images()}
    tops = sorted({_label(folder, top, "top") for top, folder in class_folders}, key=natural_key)
    example = next(name for name in sorted(deepest, key=natural_key) if "/" in name)
    listed = [f"{kind.below_root} ({len(kind.images):,} images)" for kind in nested]
    advice = ""
    if len(class_folders) == 1 and len(class_folders[0][1].folders) > 1:
        advice = f" Or give the one folder that everything lies in: {str(class_folders[0][1].path)!r}."
    raise DataError(
        f"{str(root)!r} has folders of images inside its class folders:\n{some_of(listed, most=5)}\n"
        f"Which are the classes? With --kinds deepest every folder with images in it, {len(deepest):,} in all, such as "
        f"{example!r}; with --kinds top the {len(tops):,} at the top, such as {tops[0]!r}, each with all below it "
        f"(in a recipe data.kinds, from Python kinds).{advice}"
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
        listed = ", ".join(repr(name) for name in flat)
        raise DataError(
            f"{str(tree.path)!r} is divided into {', '.join(folder.path.name for folder in named)}, "
            f"but {listed} {'holds' if len(flat) == 1 else 'hold'} images without class folders; "
            f"{_expected_layout(tree.path)}"
        )
    return [] if flat else named


def existing_folder(root: str | Path) -> Path:
    """``root``, if it is a folder; else an error that says what it is, or what was probably meant."""
    root = Path(root).expanduser()
    if root.is_dir():
        return root
    if root.exists():
        advice = "a folder is needed"
        if root.suffix.lower() in MANIFEST_ENDINGS:
            advice = "read a list of images with nearkin.data.manifest.read_manifest"
        elif is_archive(root):
            advice = "unpack it, and give the folder that it unpacks to"
        raise DataError(f"{str(root)!r} is a file; {advice}")
    raise DataError(f"there is no folder {str(root)!r}{nearest_folder(root)}")


def nearest_folder(missing: Path) -> str:
    """A clause on the folder that was probably meant, beside the first part of the path that does not exist."""
    while not missing.parent.exists():
        missing = missing.parent
    try:
        beside = [entry.name for entry in os.scandir(missing.parent) if entry.is_dir()]
    except OSError:
        return ""
    by_key = {folder.casefold(): folder for folder in sorted(beside)}
    near = difflib.get_close_matches(missing.name.casefold(), by_key, n=1)
    return f"; did you mean {str(missing.parent / by_key[near[0]])!r}?" if near else ""


def _beside(others: tuple[LeftOut, ...]) -> str:
    """What a folder without images does hold."""
    listed = "; ".join(f"{each.count:,} {each.what}, {each.reason}" for each in others[:3])
    return f" ({listed})" if listed else ""


def _expected_layout(root: Path) -> str:
    name = readable(root.resolve().name) or "data"
    return (
        "one folder per class is expected:\n"
        f"  {name}/\n"
        "    apple/\n"
        "      photo1.jpg\n"
        "      photo2.jpg\n"
        "    pear/\n"
        "      photo3.jpg\n"
        f"or the same below {name}/train and {name}/test. Images are {_COMMON}."
    )
