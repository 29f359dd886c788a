"""Decoding: one image file becomes one RGB array, or an error that names the file and what is wrong with it."""

from __future__ import annotations

import io
import os
import re
import stat
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageFile, UnidentifiedImageError

from nearkin.errors import DataError, MissingExtraError, require

NOT_IMAGES = "not images"

_RAW_ENDINGS = (
    *(".dng", ".cr2", ".cr3", ".crw", ".nef", ".nrw", ".arw", ".sr2", ".raf", ".orf", ".rw2", ".pef", ".srw"),
    *(".raw", ".x3f", ".3fr", ".iiq"),
)
UNREADABLE_PHOTOS: Mapping[str, str] = {
    **dict.fromkeys((".heic", ".heif", ".hif"), "HEIC photos: pip install 'nearkin[heic]' to read them"),
    ".avif": "AVIF photos, which this Pillow cannot read: update it to 11.3 or newer",
    ".jxl": "JPEG XL, which Pillow cannot read: convert to JPEG or PNG",
    **dict.fromkeys(_RAW_ENDINGS, "camera raw files: export them as JPEG"),
}
"""Endings of photos that may not be readable, and what to do about them."""

# Pillow hands these to an outside program or a system renderer, so a data set could run code by holding one.
_DRAWINGS = frozenset({"EPS", "WMF", "EMF"})
_NO_PHOTOS = _DRAWINGS | {"PDF", "MPEG", "BUFR", "GRIB", "HDF5", "IPTC"}

MAX_PIXELS = 120_000_000
"""Larger images, by the size in the file's header, are refused before any pixel is decoded."""

# Pillow keeps the box of a crop in float32, which is too coarse for much longer strips.
_LONGEST_SIDE = 1 << 20

# How to turn an image upright, by the value of its EXIF orientation tag.
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


class UnreadableImageError(DataError):
    """An image file that cannot be decoded: ``path`` names it and ``reason`` says in one line what is wrong."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


def decode(path: Path | str, *, shorter_side: int | None = None) -> NDArray[np.uint8]:
    """The image at ``path`` as an RGB array ``[H, W, 3]``, upright, or :class:`UnreadableImageError`.

    Greyscale (8 and 16 bits), palette and CMYK images become RGB, transparent ones are laid on white, and of an
    animation the first frame is taken. An image whose shorter side is longer than ``shorter_side`` is shrunk to it.
    """
    path = Path(path)
    return decode_bytes(read_file(path), path=path, shorter_side=shorter_side)


def read_file(path: Path) -> bytes:
    """The bytes of an image file, unless there is no such regular file or it is too large to be an image."""
    limit = 8 * MAX_PIXELS + (1 << 20)  # the widest pixels are uncompressed 16-bit RGBA
    try:
        status = os.stat(path)
        # Opening a pipe would wait forever for a writer.
        if not stat.S_ISREG(status.st_mode):
            raise UnreadableImageError(path, "a folder" if stat.S_ISDIR(status.st_mode) else "not a regular file")
        if status.st_size > limit:
            raise UnreadableImageError(path, f"too large: {status.st_size:,} bytes for at most {MAX_PIXELS:,} pixels")
        with open(path, "rb") as file:
            data = file.read(limit)
    except (OSError, ValueError) as error:
        raise UnreadableImageError(path, _reason(error)) from error
    if not data:
        raise UnreadableImageError(path, "empty file")
    return data


def decode_bytes(data: bytes, *, path: Path, shorter_side: int | None = None) -> NDArray[np.uint8]:
    """Like :func:`decode`, from the bytes that were read from ``path``."""
    _hush_pillow()
    register_heic()
    try:
        with Image.open(io.BytesIO(data)) as opened:
            _check_size(opened, path)
            if opened.format in _DRAWINGS:
                raise UnreadableImageError(path, f"a drawing ({opened.format}), not pixels; export it as PNG")
            if shorter_side is not None and opened.format in ("JPEG", "MPO"):
                # At twice the final size or more the image is still resampled afterwards, which avoids aliasing.
                opened.draft(None, (2 * shorter_side, 2 * shorter_side))
            return _pixels(opened, shorter_side)
    except UnreadableImageError:
        raise
    except Exception as error:  # a malformed file can make a decoder raise nearly anything
        raise UnreadableImageError(path, _reason(error, data)) from error


def decode_pillow(image: Image.Image, *, path: Path, shorter_side: int | None = None) -> NDArray[np.uint8]:
    """Like :func:`decode`, from an image that Pillow has opened or made; errors name it by ``path``.

    A file that was opened but not yet read is read here from its beginning. That gives the same pixels as decoding its
    path, and does not load the image itself, so that a list of opened photos does not fill the memory.
    """
    _hush_pillow()
    if isinstance(image, ImageFile.ImageFile) and image.fp is not None and image.tile and image.tell() == 0:
        position = image.fp.tell()
        image.fp.seek(0)
        data = image.fp.read()
        image.fp.seek(position)
        return decode_bytes(data, path=path, shorter_side=shorter_side)
    try:
        _check_size(image, path)
        return _pixels(image, shorter_side)
    except UnreadableImageError:
        raise
    except Exception as error:  # an image opened from a malformed file is read only now
        raise UnreadableImageError(path, _reason(error)) from error


def _check_size(opened: Image.Image, path: Path) -> None:
    width, height = opened.size
    if width * height > MAX_PIXELS or max(width, height) > _LONGEST_SIDE:
        raise UnreadableImageError(path, f"too large: {width} x {height} pixels, allowed are {MAX_PIXELS:,}")
    if not width * height:
        raise UnreadableImageError(path, f"no pixels: {width} x {height}")


def _pixels(opened: Image.Image, shorter_side: int | None) -> NDArray[np.uint8]:
    opened.load()
    image = _upright(_as_rgb(opened), opened)
    return np.array(image if shorter_side is None else _shrunk(image, shorter_side), dtype=np.uint8)


def resized_shape(height: int, width: int, shorter_side: int) -> tuple[int, int]:
    """``(height, width)`` after scaling to ``shorter_side``; the longer side is rounded down, as is usual in the field.

    >>> resized_shape(300, 401, 256)
    (256, 342)
    """
    if height <= width:
        return shorter_side, max(1, shorter_side * width // height)
    return max(1, shorter_side * height // width), shorter_side


def _shrunk(image: Image.Image, shorter_side: int) -> Image.Image:
    """Bilinear, with the filter widened by the reduction so that every source pixel counts, as in published code."""
    if min(image.size) <= shorter_side:
        return image
    height, width = resized_shape(image.height, image.width, shorter_side)
    # A box filter first shrinks very large images most of the way; with a gap of 3 the result hardly differs.
    return image.resize((width, height), Image.Resampling.BILINEAR, reducing_gap=3.0)


def _as_rgb(image: Image.Image) -> Image.Image:
    if image.mode == "F" or image.mode.startswith("I"):
        return _eight_bits(image).convert("RGB")
    if image.mode in ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBa") and image.has_transparency_data:
        rgba = image.convert("RGBA")
        canvas = Image.new("RGB", rgba.size, "white")
        canvas.paste(rgba, mask=rgba.getchannel("A"))
        return canvas
    return image.convert("RGB")


def _eight_bits(image: Image.Image) -> Image.Image:
    """16-bit greyscale keeps its scale; wider values have no white point, so their range is stretched to 8 bits."""
    values = np.array(image, dtype=np.float32)
    values[~np.isfinite(values)] = 0.0
    low, high = float(values.min()), float(values.max())
    if image.mode != "F" and low >= 0 and high <= 65535:
        low, high = 0.0, 65535.0
    scaled = (values - low) * (255.0 / (high - low)) if high > low else np.zeros_like(values)
    return Image.fromarray(np.rint(scaled).astype(np.uint8))


def _upright(pixels: Image.Image, opened: Image.Image) -> Image.Image:
    # ImageOps.exif_transpose would also write the EXIF block again, which fails on malformed blocks of some cameras.
    try:
        orientation = opened.getexif().get(ExifTags.Base.Orientation)
    except Exception:  # a malformed EXIF block
        return pixels
    turn = _UPRIGHT.get(orientation) if isinstance(orientation, int) else None
    return pixels if turn is None else pixels.transpose(turn)


def _reason(error: Exception, data: bytes = b"") -> str:
    if isinstance(error, UnidentifiedImageError):
        if data[4:8] == b"ftyp" and data[8:12] in (b"heic", b"heix", b"hevc", b"hevx", b"mif1", b"msf1"):
            return "a HEIC photo: pip install 'nearkin[heic]' to read it"
        return "not an image, or a format that Pillow cannot read"
    if isinstance(error, Image.DecompressionBombError):
        return f"too large: {error}"
    if isinstance(error, OSError) and error.strerror:
        return "no such file" if isinstance(error, FileNotFoundError) else error.strerror.lower()
    first_line = str(error).strip().partition("\n")[0]
    return first_line if first_line and isinstance(error, OSError) else f"{type(error).__name__}: {first_line}"


_PILLOW_MODULES = re.compile(r"PIL\.")


def _hush_pillow() -> None:
    """Silence Pillow's warnings about odd EXIF blocks and palettes, in every thread."""
    for category in (UserWarning, Image.DecompressionBombWarning):
        if ("ignore", None, category, _PILLOW_MODULES, 0) not in warnings.filters:
            warnings.filterwarnings("ignore", category=category, module=_PILLOW_MODULES.pattern)


@cache
def register_heic() -> bool:
    """Let Pillow read HEIC, if the extra ``heic`` is installed; returns whether it is."""
    try:
        require("pillow_heif", "heic").register_heif_opener()
    except MissingExtraError:
        return False
    return True


@cache
def image_extensions() -> frozenset[str]:
    """Endings of files that are read as images: all raster formats of the installed Pillow."""
    register_heic()
    formats = Image.registered_extensions()
    readable = {ending for ending, name in formats.items() if name in Image.OPEN and name not in _NO_PHOTOS}
    return frozenset(readable | {".mpo"})  # opened by the JPEG reader, so Pillow has no opener of that name


def is_image_file(path: Path) -> bool:
    """Whether a file is an image rather than a list of images, by its ending."""
    return path.suffix.lower() in image_extensions() or path.suffix.lower() in UNREADABLE_PHOTOS


def crop_shares(pixels: NDArray[np.uint8], crop: Sequence[float]) -> NDArray[np.uint8]:
    """A part of an image ``[H, W, 3]``, at least one pixel; ``crop`` is x, y, width and height as shares of the image.

    >>> crop_shares(np.arange(48, dtype=np.uint8).reshape(4, 4, 3), (0.5, 0.0, 0.5, 0.25))[..., 0].tolist()
    [[6, 9]]
    """
    x, y, width, height = crop
    spans = []
    for start, size, total in ((y, height, pixels.shape[0]), (x, width, pixels.shape[1])):
        first = min(round(start * total), total - 1)
        spans.append(slice(first, max(first + 1, round((start + size) * total))))
    return pixels[tuple(spans)]
