"""Glyphs: the benchmark that needs no download. The first half of the classes, by code point, trains.

A class is a character; an image is that character in one of the sixteen faces that ship inside matplotlib, distorted.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import io
import json
import math
import unicodedata
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageChops, ImageDraw, ImageFilter, ImageFont, features

from nearkin.data.benchmarks.benchmark import Benchmark
from nearkin.data.cache import cache_root
from nearkin.data.table import ImageTable
from nearkin.disk import make_folder, write_atomically
from nearkin.errors import DataError, OutputError

# Raise this whenever a change here or in the distortions changes an image: it is part of the cache's key.
GENERATOR = 2
SIZE, SEED = 48, 0

FACES = (
    *("DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSans-BoldOblique"),
    *("DejaVuSansMono", "DejaVuSansMono-Bold", "DejaVuSansMono-Oblique", "DejaVuSansMono-BoldOblique"),
    *("DejaVuSerif", "DejaVuSerif-Bold", "DejaVuSerif-Italic", "DejaVuSerif-BoldItalic"),
    *("STIXGeneral", "STIXGeneralBol", "STIXGeneralItalic", "STIXGeneralBolIta"),
)
FEWEST_FACES = 10
SMALLEST_EM_SHARE = 0.3

CATEGORIES = frozenset({"Lu", "Ll", "Lt", "Lo", "Nd", "Nl", "No", "Sm", "Sc", "So", "Po", "Ps", "Pe"})

# Pieces of larger drawings (tall brackets, boxes, Braille dots): they differ by their position in the cell, which the
# distortions change.
PIECES = (range(0x239B, 0x23B4), range(0x2500, 0x25A0), range(0x2800, 0x2900))

CLOSE_POLYGON = 79


@dataclass(frozen=True)
class GlyphClass:
    """A class: the code point that names it, and for each face the code point that is drawn."""

    code_point: int
    drawn: Mapping[str, int]

    @property
    def name(self) -> str:
        return f"U+{self.code_point:04X} {chr(self.code_point)}"


def read_glyphs(cache_dir: Path | None = None) -> ImageTable:
    """The whole benchmark: uint8 images ``[N, 48, 48]``, drawn once and kept in ``cache_dir``.

    The columns are ``face`` and ``character``, the one drawn; a class of look-alikes is named after its first.
    """
    made_by = {package: importlib.metadata.version(package) for package in ("matplotlib", "numpy", "pillow")}
    made_by["freetype"] = str(features.version("freetype2"))
    key = json.dumps([GENERATOR, SIZE, SEED, 1.0, made_by], sort_keys=True)
    digest = hashlib.sha256(key.encode()).hexdigest()[:16]
    path = (cache_dir or cache_root() / "glyphs") / f"glyphs-{digest}.npz"
    table = _load(path)
    if table is None:
        table = draw_glyphs(glyph_classes())
        _save(table, path)
    return table


def draw_glyphs(
    classes: Sequence[GlyphClass], *, size: int = SIZE, seed: int = SEED, strength: float = 1.0
) -> ImageTable:
    """Draw the given classes; the first half becomes the train split. ``strength`` 0 gives clean glyphs.

    An image depends only on the seed, its class and its face.

    >>> table = draw_glyphs([GlyphClass(0x41, {"DejaVuSans": 0x41}), GlyphClass(0x42, {"STIXGeneral": 0x42})])
    >>> table.images.shape, table.ids, table.splits.tolist()
    ((2, 48, 48), ('U+0041/DejaVuSans', 'U+0042/STIXGeneral'), ['train', 'test'])
    """
    fonts = {
        # The other layout engine is an optional part of Pillow.
        face: ImageFont.truetype(_font_file(face), drawing_size(size), layout_engine=ImageFont.Layout.BASIC)
        for face in FACES
    }
    rows = [(c, face, c.drawn[face]) for c in classes for face in FACES if face in c.drawn]
    images = np.empty((len(rows), size, size), dtype=np.uint8)
    for image, (glyph_class, face, code_point) in zip(images, rows, strict=True):
        key = np.random.SeedSequence([seed, glyph_class.code_point, zlib.crc32(face.encode())])
        rng = np.random.Generator(np.random.Philox(key))
        image[:] = distort(_ink(fonts[face], chr(code_point)), size=size, strength=strength, rng=rng)
    train = {glyph_class.code_point for glyph_class in classes[: len(classes) // 2]}
    return ImageTable.build(
        "glyphs",
        images,
        [c.name for c, _, _ in rows],
        splits=["train" if c.code_point in train else "test" for c, _, _ in rows],
        ids=[f"U+{c.code_point:04X}/{face}" for c, face, _ in rows],
        columns={"face": [face for _, face, _ in rows], "character": [chr(point) for _, _, point in rows]},
    )


def glyph_classes() -> list[GlyphClass]:
    """Every class, by code point.

    Characters with the same outline in any face are one class, whatever their position on the line, since distortions
    move them anyway. Outlines are compared, not bitmaps, which differ between versions of FreeType.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    outlines: dict[int, dict[str, bytes]] = {}
    for face in FACES:
        for code_point, outline in _outlines(face):
            outlines.setdefault(code_point, {})[face] = outline
    common = sorted(code_point for code_point, faces in outlines.items() if len(faces) >= FEWEST_FACES)

    owner: dict[tuple[str, bytes], int] = {}
    pairs = [(index, owner.setdefault(key, index)) for index, c in enumerate(common) for key in outlines[c].items()]
    graph = coo_array((np.ones(len(pairs)), np.transpose(pairs)), shape=(len(common), len(common)))
    drawn: dict[int, dict[str, int]] = {}
    for code_point, group in zip(common, connected_components(graph, directed=False)[1].tolist(), strict=True):
        faces = drawn.setdefault(group, {})
        for face in outlines[code_point]:
            faces.setdefault(face, code_point)
    return [GlyphClass(min(faces.values()), faces) for faces in drawn.values()]


def _outlines(face: str) -> Iterator[tuple[int, bytes]]:
    """The characters of a face that remain distinct once distorted, each with its outline moved to the origin."""
    # Imported here because a table from the cache needs no matplotlib.
    ft2font = importlib.import_module("matplotlib.ft2font")
    if hasattr(ft2font, "LoadFlags"):
        in_font_units = ft2font.LoadFlags.NO_SCALE | ft2font.LoadFlags.IGNORE_TRANSFORM
    else:  # matplotlib before 3.10
        in_font_units = ft2font.LOAD_NO_SCALE | ft2font.LOAD_IGNORE_TRANSFORM
    font = ft2font.FT2Font(_font_file(face))

    def outline() -> tuple[bytes, float]:
        vertices, codes = font.get_path()
        corners = vertices[codes != CLOSE_POLYGON]
        if not len(corners):
            return b"", 0.0
        moved = corners - corners.min(axis=0)
        return moved.tobytes() + codes.tobytes(), float(moved.max()) * 64 / font.units_per_EM

    font.load_glyph(0, flags=in_font_units)
    missing_glyph, _ = outline()
    for code_point in sorted(font.get_charmap()):
        # Accents and superscripts are smaller than what the distortions do to them.
        whole = not unicodedata.decomposition(chr(code_point)) and not any(code_point in piece for piece in PIECES)
        if whole and unicodedata.category(chr(code_point)) in CATEGORIES:
            font.load_char(code_point, flags=in_font_units)
            shape, em_share = outline()
            if em_share >= SMALLEST_EM_SHARE and shape != missing_glyph:
                yield code_point, shape


def _font_file(face: str) -> str:
    import matplotlib

    path = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{face}.ttf"
    if not path.is_file():
        raise DataError(f"matplotlib comes without its font {path.name} (expected at {path}); reinstall it with pip")
    return str(path)


def _ink(font: ImageFont.FreeTypeFont, character: str) -> Image.Image:
    left, top, right, bottom = (round(edge) for edge in font.getbbox(character))
    # FreeType may put antialiased pixels just outside the box that it reports.
    margin = 2
    canvas = Image.new("L", (right - left + 2 * margin, bottom - top + 2 * margin))
    ImageDraw.Draw(canvas).text((margin - left, margin - top), character, fill=255, font=font)
    return canvas.crop(canvas.getbbox())


def _load(path: Path) -> ImageTable | None:
    """The table stored at ``path``, or None where there is none that can be read."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = dict(stored)
        columns = {name: arrays.pop(name) for name in ("face", "character")}
        class_names, ids = (tuple(arrays.pop(name).tolist()) for name in ("class_names", "ids"))
        return ImageTable("glyphs", class_names=class_names, ids=ids, columns=columns, **arrays)
    except (OSError, EOFError, KeyError, TypeError, ValueError, zipfile.BadZipFile, zlib.error, DataError):
        return None


def _save(table: ImageTable, path: Path) -> None:
    arrays: dict[str, Any] = {"images": table.images, "labels": table.labels, "splits": table.splits, **table.columns}
    arrays |= {"class_names": np.array(table.class_names), "ids": np.array(table.ids)}
    content = io.BytesIO()
    np.savez(content, **arrays)
    try:
        make_folder(path.parent)
        write_atomically(path, content.getvalue())
    except OutputError as error:
        warnings.warn(f"Glyphs could not be kept in {path.parent} and will be drawn again: {error}", stacklevel=3)


# The maximum of each distortion at strength 1. Lengths are shares of the image's side; the stroke's is one of the em.
ROTATION = math.radians(10)
SHEAR = 0.1
LOG_STRETCH = 0.1
LOG_ZOOM = 0.1
SHIFT = 0.17
STROKE = 0.025
PATCH = 0.16
PATCH_REACH = 0.25
BLUR = 0.015
NOISE = 0.2

EM_SHARE = 0.75
WIDEST_SHARE = 0.9
OVERSAMPLING = 2
CONTRAST = 4


def drawing_size(size: int) -> int:
    """The font size, in pixels per em, at which a glyph for an image of the given ``size`` is drawn."""
    return round(OVERSAMPLING * EM_SHARE * size)


def distort(glyph: Image.Image, *, size: int, strength: float, rng: np.random.Generator) -> NDArray[np.uint8]:
    """An image ``[size, size]`` from a ``glyph`` (light on dark, cropped to its ink) drawn at :func:`drawing_size`.

    In this order: thicker strokes, an affine map, a grey patch that hides a part, blur, noise. With ``strength`` 0 the
    glyph is only put in the middle.
    """
    angle, shear, stretch, zoom, right, down = rng.uniform(-strength, strength, size=6).tolist()
    stroke, across, along, grey, blur, noise = rng.uniform(0.0, 1.0, size=6).tolist()
    grain = rng.standard_normal((size, size), dtype=np.float32)

    thick = _thicken(glyph, radius=STROKE * drawing_size(size), amount=stroke * strength)
    frame = size * OVERSAMPLING
    fit = min(1.0, WIDEST_SHARE * frame / max(glyph.size))
    inverse = np.linalg.inv(fit * _linear_map(angle * ROTATION, shear * SHEAR, stretch * LOG_STRETCH, zoom * LOG_ZOOM))
    landing = frame / 2 + np.array([right * SHIFT * size, down * SHIFT * size]) * OVERSAMPLING
    origin = np.array([thick.width / 2, thick.height / 2]) - inverse @ landing
    affine = np.column_stack([inverse, origin]).ravel().tolist()
    image = thick.transform((frame, frame), Image.Transform.AFFINE, affine, Image.Resampling.BILINEAR)
    image = image.reduce(OVERSAMPLING)

    side = round(PATCH * strength * size)
    left, top = (round((0.5 + (2.0 * p - 1.0) * PATCH_REACH) * size - side / 2) for p in (across, along))
    image.paste(round(255 * grey), (left, top, left + side, top + side))
    image = image.filter(ImageFilter.GaussianBlur(blur * strength * BLUR * size))
    noisy = np.asarray(image, dtype=np.float32) + grain * (255.0 * NOISE * strength * noise)
    pixels: NDArray[np.uint8] = np.rint(noisy).clip(0, 255).astype(np.uint8)
    return pixels


def _thicken(glyph: Image.Image, *, radius: float, amount: float) -> Image.Image:
    """Thicken strokes by the glyph's own blur at full contrast; ``amount`` 0 only adds a margin, 1 thickens most.

    Strokes never become thinner, as the finest of the light faces would vanish.
    """
    margin = math.ceil(3 * radius) + 1
    padded = Image.new("L", (glyph.width + 2 * margin, glyph.height + 2 * margin))
    padded.paste(glyph, (margin, margin))
    if amount == 0.0:
        return padded
    blurred = padded.filter(ImageFilter.GaussianBlur(radius))
    cut = Image.new("L", padded.size, round(255 * (1.0 - 0.75 * amount)))
    return ImageChops.lighter(padded, ImageChops.subtract(blurred, cut, scale=1 / CONTRAST, offset=127))


def _linear_map(angle: float, shear: float, stretch: float, zoom: float) -> NDArray[np.float64]:
    rotation = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    slant = np.array([[1.0, shear], [0.0, 1.0]])
    scale = np.diag([math.exp(zoom + stretch), math.exp(zoom - stretch)])
    return np.asarray(rotation @ slant @ scale)


BENCHMARKS = (
    Benchmark(
        name="glyphs",
        title="Glyphs",
        home="https://matplotlib.org (the fonts in its wheels, from which nearkin draws the images)",
        layout="no files: if the counts differ, this matplotlib has other fonts than the one on PyPI",
        counts={"train": (7524, 520), "test": (6602, 521)},
        reader=lambda _: read_glyphs(),
    ),
)
