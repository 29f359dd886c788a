"""A table of images from a folder with one subfolder per class."""

from __future__ import annotations

import difflib
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from nearkin.data.listing import class_name, natural_key, readable
from nearkin.data.table import ImageTable
from nearkin.errors import DataError

IMAGE_EXTENSIONS = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm"})

SPLIT_FOLDERS = {
    "train": "train",
    "validation": "validation",
    "valid": "validation",
    "val": "validation",
    "test": "test",
    "query": "query",
    "gallery": "gallery",
}

_ARCHIVES = frozenset({".zip", ".tar", ".gz", ".tgz", ".bz2", ".xz", ".7z", ".rar"})
_MANIFESTS = frozenset({".csv", ".tsv", ".txt", ".jsonl", ".ndjson", ".json"})


def read_folder(root: str | Path, *, name: str | None = None) -> ImageTable:
    """Read a folder that has one subfolder per class, named after it; deeper folders belong to the class above them.

    Everything is in the split ``train`` (a protocol divides it later), unless the top folders are called ``train``,
    ``test``, ``validation`` (``val``, ``valid``), ``query`` or ``gallery`` and hold the class folders. Hidden files
    are left out. An image's id is its path below ``root``.

    Args:
        root: the folder.
        name: what to call the table; the folder's own name when None.

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
    root = _existing_folder(root)
    tree = _scan(root)
    if not tree.folders:
        what = f"holds {len(tree.images):,} images but no class folders" if tree.images else "holds no images"
        raise DataError(f"{str(root)!r} {what}; {_expected_layout(root)}")

    splits = _split_folders(tree)
    if splits:
        groups = [(SPLIT_FOLDERS[top.key], folder) for top in splits for folder in top.folders]
        ignored = [image for folder in (tree, *splits) for image in folder.own_images()]
        ignored += [image for top in tree.folders if top.key not in SPLIT_FOLDERS for image in top.every_image()]
    else:
        groups = [("train", folder) for folder in tree.folders]
        ignored = list(tree.own_images())

    images: list[tuple[str, Path]] = []
    labels: list[str] = []
    in_split: list[str] = []
    for split, folder in groups:
        found = list(folder.every_image())
        images += found
        labels += [class_name(folder.path.name)] * len(found)
        in_split += [split] * len(found)
    classes = sorted(set(labels), key=natural_key)
    if len(classes) < 2:
        raise DataError(
            f"{str(root)!r} has images of one class only ({classes[0]!r}), at least two are needed; "
            f"{_expected_layout(root)}"
        )
    if ignored:
        warnings.warn(
            f"{len(ignored):,} images in {str(root)!r} are in no class folder and are left out, "
            f"for instance {ignored[0][0]!r}",
            stacklevel=2,
        )
    return ImageTable.build(
        name or readable(root.resolve().name),
        [path for _, path in images],
        labels,
        splits=in_split,
        ids=[name for name, _ in images],
        class_names=classes,
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
    root = _existing_folder(root)
    images = [path for _, path in _scan(root).every_image()]
    if not images:
        raise DataError(f"{str(root)!r} holds no images ({_extensions()})")
    return images


@dataclass(frozen=True)
class _Folder:
    """A folder with images somewhere in it; folders without any are left out of ``folders``."""

    path: Path
    below_root: str
    images: tuple[str, ...]
    folders: tuple[_Folder, ...]

    @property
    def key(self) -> str:
        return self.path.name.casefold()

    def own_images(self) -> Iterator[tuple[str, Path]]:
        """Id and path of the images that lie in the folder itself."""
        for image in self.images:
            yield self.below_root + readable(image), self.path / image

    def every_image(self) -> Iterator[tuple[str, Path]]:
        yield from self.own_images()
        for folder in self.folders:
            yield from folder.every_image()


def _scan(path: Path, *, below_root: str = "", above: frozenset[tuple[int, int]] = frozenset()) -> _Folder:
    """Read a folder and everything below it. ``above`` are the folders it lies in, against links that go in circles."""
    images: list[str] = []
    folders: list[str] = []
    try:
        status = os.stat(path)
        here = above | {(status.st_dev, status.st_ino)}
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if entry.is_dir():
                    below = entry.stat()
                    if (below.st_dev, below.st_ino) not in here:
                        folders.append(entry.name)
                elif os.path.splitext(entry.name)[1].lower() in IMAGE_EXTENSIONS and entry.is_file():
                    images.append(entry.name)
    except OSError as error:
        raise DataError(f"cannot read the folder {str(path)!r}: {error.strerror or error}") from error
    scanned = [
        _scan(path / folder, below_root=f"{below_root}{readable(folder)}/", above=here)
        for folder in sorted(folders, key=natural_key)
    ]
    return _Folder(
        path=path,
        below_root=below_root,
        images=tuple(sorted(images, key=natural_key)),
        folders=tuple(folder for folder in scanned if folder.images or folder.folders),
    )


def _split_folders(tree: _Folder) -> list[_Folder]:
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


def _existing_folder(root: str | Path) -> Path:
    root = Path(root).expanduser()
    if root.is_dir():
        return root
    if root.exists():
        advice = "a folder is needed"
        if root.suffix.lower() in _ARCHIVES:
            advice = "unpack it, and give the folder that it unpacks to"
        elif root.suffix.lower() in _MANIFESTS:
            advice = "read a list of images with nearkin.data.manifest.read_manifest"
        raise DataError(f"{str(root)!r} is a file; {advice}")
    raise DataError(f"there is no folder {str(root)!r}{_nearest_folder(root)}")


def _nearest_folder(missing: Path) -> str:
    """The folder that was probably meant, looked for beside the first part of the path that does not exist."""
    while not missing.parent.exists():
        missing = missing.parent
    try:
        beside = [entry.name for entry in os.scandir(missing.parent) if entry.is_dir()]
    except OSError:
        return ""
    by_key = {folder.casefold(): folder for folder in sorted(beside)}
    near = difflib.get_close_matches(missing.name.casefold(), by_key, n=1)
    return f"; did you mean {str(missing.parent / by_key[near[0]])!r}?" if near else ""


def _extensions() -> str:
    return ", ".join(sorted(extension[1:] for extension in IMAGE_EXTENSIONS))


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
        f"or the same below {name}/train and {name}/test. Images end in {_extensions()}."
    )
