"""Images that a caller passes in: paths, bytes, Pillow's images, arrays and tensors, one or many."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from nearkin.data.cache import Images
from nearkin.data.images import UnreadableImageError, decode, decode_bytes, decode_pillow
from nearkin.errors import DataError


@runtime_checkable
class Tensor(Protocol):
    """A tensor of torch, which is not imported here: an exported encoder takes images where there is no torch."""

    def detach(self) -> Any: ...

    def is_floating_point(self) -> bool: ...


ImageInput: TypeAlias = "str | os.PathLike[str] | bytes | Image.Image | NDArray[Any] | Tensor"

_ACCEPTED = (
    "a path, the bytes of an image file, a Pillow image, or a uint8 array or tensor [H, W] or [H, W, 3] (many of one "
    "size as [N, H, W, 3], else as a list)"
)
_CHANNELS = (1, 3, 4)


class ImageInputs:
    """One image or many in the order given, each decoded when it is accessed.

    In whatever form an image comes, it is treated as :func:`~nearkin.data.images.decode` treats a file. One with a side
    below ``least_side`` is an error.

    >>> images = ImageInputs([np.zeros((4, 6), np.uint8), Image.new("CMYK", (6, 4))], shorter_side=256)
    >>> len(images), images[0].shape, images[1].shape
    (2, (4, 6, 3), (4, 6, 3))
    """

    def __init__(
        self, images: ImageInput | Iterable[ImageInput], *, shorter_side: int | None, least_side: int = 1
    ) -> None:
        items: Any = [images] if is_one_image(images) else images
        if not isinstance(items, Iterable):
            raise DataError(f"cannot embed {type(images).__name__}: give {_ACCEPTED}")
        self._items = [_checked(item, number) for number, item in enumerate(items, start=1)]
        self._shorter_side, self._least_side = shorter_side, least_side
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, row: int, /) -> NDArray[np.uint8]:
        item = self._items[row]
        name = item if isinstance(item, Path) else Path(f"image {row + 1} of those given")
        if isinstance(item, Path):
            pixels = decode(item, shorter_side=self._shorter_side)
        elif isinstance(item, bytes):
            pixels = decode_bytes(item, path=name, shorter_side=self._shorter_side)
        elif isinstance(item, Image.Image):
            path = Path(getattr(item, "filename", "") or name)
            # The same image may be in the list twice, and a Pillow image must not be read by two threads.
            with self._lock:
                pixels = decode_pillow(item, path=path, shorter_side=self._shorter_side)
        else:
            pixels = decode_pillow(Image.fromarray(item), path=name, shorter_side=self._shorter_side)
        height, width = pixels.shape[:2]
        if min(height, width) < self._least_side:
            raise UnreadableImageError(name, too_small(width, height, self._least_side))
        return pixels


def too_small(width: int, height: int, least_side: int) -> str:
    """Why an image is refused, and what to do."""
    return f"it has {width} × {height} pixels, and both sides must have at least {least_side}: give a larger image"


def as_images(images: Images | ImageInput | Iterable[ImageInput], *, shorter_side: int | None) -> Images:
    """``images`` by row; images opened before, which are not iterable, are returned as they are."""
    if isinstance(images, (os.PathLike, Image.Image, np.ndarray, Tensor, Iterable)):
        return ImageInputs(images, shorter_side=shorter_side)
    return images


def is_one_image(images: object) -> bool:
    """Whether a caller has passed one image, rather than a list or a batch ``[N, H, W, 3]``."""
    if isinstance(images, np.ndarray):
        return images.ndim != 4 and images.dtype.kind not in "OU"
    if isinstance(images, Tensor):
        return bool(images.detach().ndim != 4)
    return isinstance(images, (str, os.PathLike, bytes, bytearray, Image.Image))


def _checked(item: ImageInput, number: int) -> Path | bytes | Image.Image | NDArray[Any]:
    """An item in one of four forms; whatever cannot be an image is refused before any image is decoded."""
    if isinstance(item, (str, os.PathLike)):
        path = Path(item).expanduser()
        if path.is_dir():
            raise DataError(
                f"{str(path)!r} is a folder: give image files, such as {path / '*.jpg'} (from Python "
                f"nearkin.data.folder.list_images lists them)"
            )
        if not path.exists():
            raise DataError(f"there is no file {str(path)!r} (image {number} of those given)")
        return path
    if isinstance(item, (bytes, bytearray)):
        return bytes(item)
    if isinstance(item, Image.Image):
        return item
    if isinstance(item, Tensor):
        tensor = item.detach().cpu()
        # torch's own readers put the channels first.
        if tensor.ndim == 3 and tensor.shape[0] in _CHANNELS and tensor.shape[2] not in _CHANNELS:
            tensor = tensor.permute(1, 2, 0)
        item = tensor.numpy()
    if not isinstance(item, np.ndarray):
        raise DataError(f"image {number} of those given is a {type(item).__name__}: give {_ACCEPTED}")
    array: NDArray[Any] = np.ascontiguousarray(item)
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    grey, colour = array.ndim == 2, array.ndim == 3 and array.shape[2] in _CHANNELS
    if array.size and ((array.dtype == np.uint8 and (grey or colour)) or (array.dtype == np.uint16 and grey)):
        return array
    advice = "; values from 0 to 1 become uint8 by (255 * x).round()" if array.dtype.kind == "f" else ""
    raise DataError(f"image {number} of those given is {array.dtype} {list(array.shape)}: give {_ACCEPTED}{advice}")
