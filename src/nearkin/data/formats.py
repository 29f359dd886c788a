"""Which files are images that can be read here, and what the others are."""

from __future__ import annotations

import io
from functools import cache
from pathlib import Path

from PIL import Image

from nearkin.errors import MissingExtraError, require

MANIFEST_ENDINGS = (".csv", ".tsv", ".txt", ".jsonl", ".ndjson", ".json")
ARCHIVE_ENDINGS = (".zip", ".tar", ".gz", ".tgz", ".bz2", ".xz", ".zst", ".7z", ".rar")
OTHER_FILES = "not images"
HEIC_ENDINGS = (".heic", ".heif", ".heics", ".heifs", ".hif")

# Pillow hands these to an outside program or a system renderer, so a data set could run code by holding one.
DRAWINGS = frozenset({"EPS", "WMF", "EMF"})

# Formats that Pillow names but that hold no photograph: also video, and containers that it only recognises.
_NO_PHOTOS = DRAWINGS | {"PDF", "MPEG", "BUFR", "GRIB", "HDF5", "IPTC"}

_PICTURES_ELSEWHERE = {
    "HEIC photos: pip install 'nearkin[heic]' to read them": HEIC_ENDINGS,
    "AVIF photos, which this Pillow cannot read: update it to 11.3 or newer": (".avif", ".avifs"),
    "JPEG XL, which Pillow cannot read: convert to JPEG or PNG": (".jxl",),
    "camera raw files: export them as JPEG": (
        *(".dng", ".cr2", ".cr3", ".crw", ".nef", ".nrw", ".arw", ".sr2", ".raf", ".orf", ".rw2", ".pef", ".srw"),
        *(".raw", ".x3f", ".3fr", ".iiq"),
    ),
}
_NO_PICTURES = {
    "drawings or documents: export them as PNG": (
        *(".pdf", ".eps", ".ps", ".svg", ".svgz", ".ai", ".wmf", ".emf", ".cdr", ".doc", ".docx", ".odt"),
        *(".ppt", ".pptx", ".odp", ".indd"),
    ),
    "videos": (
        *(".mp4", ".mov", ".m4v", ".avi", ".mkv", ".webm", ".mpg", ".mpeg", ".wmv", ".flv", ".3gp", ".mts", ".m2ts"),
    ),
    "archives: unpack them": ARCHIVE_ENDINGS,
}
_REASONS = {
    ending: reason for group in (_PICTURES_ELSEWHERE, _NO_PICTURES) for reason in group for ending in group[reason]
}

_ARCHIVE_STARTS = (
    b"PK\x03\x04",
    b"PK\x05\x06",
    b"\x1f\x8b",
    b"BZh",
    b"\xfd7zXZ",
    b"7z\xbc\xaf",
    b"Rar!",
    b"(\xb5/\xfd",
)
_HEIC_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")


@cache
def image_extensions() -> frozenset[str]:
    """Endings of the files that are read as images: all raster formats of the Pillow that is installed.

    >>> {".jpg", ".jfif", ".png", ".jp2"} <= image_extensions(), ".pdf" in image_extensions()
    (True, False)
    """
    teach_pillow_heic()
    formats = Image.registered_extensions()
    readable = {ending for ending, name in formats.items() if name in Image.OPEN and name not in _NO_PHOTOS}
    return frozenset(readable | {".mpo"})  # opened by the JPEG reader, so Pillow has no opener of that name


@cache
def teach_pillow_heic() -> bool:
    """Whether Pillow reads HEIC here, which it does once the extra ``heic`` has been registered with it."""
    try:
        require("pillow_heif", "heic").register_heif_opener()
    except MissingExtraError:
        return False
    return True


def why_left_out(ending: str) -> str:
    """What the files with an ending outside :func:`image_extensions` are, and what to do if they were meant.

    >>> why_left_out(".mp4"), why_left_out(".xyz")
    ('videos', 'not images')
    """
    return _REASONS.get(ending.lower(), OTHER_FILES)


def is_picture(ending: str) -> bool:
    """Whether an ending outside :func:`image_extensions` is that of pictures all the same."""
    return any(ending.lower() in endings for endings in _PICTURES_ELSEWHERE.values())


def is_heic(data: bytes) -> bool:
    """Whether the bytes of a file begin as HEIC does."""
    return data[4:8] == b"ftyp" and data[8:12] in _HEIC_BRANDS


def is_image_file(path: Path) -> bool:
    """Whether a file is one image, rather than a list of images: by its ending, or else by its first bytes."""
    ending = path.suffix.lower()
    if ending in image_extensions() or is_picture(ending):
        return True
    return ending not in (*MANIFEST_ENDINGS, *ARCHIVE_ENDINGS) and _opens_as_image(_head(path))


def is_archive(path: Path) -> bool:
    """Whether a file is an archive (a spreadsheet is one, too)."""
    head = _head(path)
    return path.suffix.lower() in ARCHIVE_ENDINGS or head.startswith(_ARCHIVE_STARTS) or head[257:262] == b"ustar"


def _head(path: Path) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(1 << 16)
    except OSError:
        return b""


def _opens_as_image(head: bytes) -> bool:
    if is_heic(head):
        return True
    try:
        with Image.open(io.BytesIO(head)) as image:
            return image.format not in _NO_PHOTOS
    except Exception:  # a decoder that meets bytes it is not made for may raise nearly anything
        return False
