"""Draws a folder of photos, one folder per kind, for those who try the examples without photos of their own.

    python examples/drawn_photos.py photos

Two seconds. A kind is a shape in a colour; an image of it has its own place, size, turn, background and noise.
"""

from __future__ import annotations

import argparse
import colorsys
import math
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

SHAPES = {"triangle": (3, 1.0), "square": (4, 1.0), "star": (5, 0.4), "hexagon": (6, 1.0), "cross": (4, 0.3)}
"""Corners, and how far in, as a share of their distance, the points between two of them lie."""
COLOURS = {"red": 0.0, "yellow": 0.15, "green": 0.35, "blue": 0.6, "purple": 0.8}


def draw_photos(folder: str | Path, *, per_kind: int = 12, side: int = 96, seed: int = 0) -> Path:
    """25 kinds with so many images each; a folder that is there already is left as it is."""
    root = Path(folder)
    rng = np.random.default_rng(seed)
    for shape in SHAPES:
        for colour in COLOURS:
            place = root / f"{colour} {shape}"
            if place.exists():
                continue
            place.mkdir(parents=True)
            for number in range(per_kind):
                _photo(shape, colour, side, rng).save(place / f"{number:02}.jpg", quality=90)
    return root


def _photo(shape: str, colour: str, side: int, rng: np.random.Generator) -> Image.Image:
    hue = (COLOURS[colour] + rng.normal(0, 0.015)) % 1
    red, green, blue = (round(255 * part) for part in colorsys.hsv_to_rgb(hue, 0.8, rng.uniform(0.6, 1.0)))
    image = Image.new("RGB", (side, side), tuple(rng.integers(60, 200, 3).tolist()))
    pen = ImageDraw.Draw(image)
    corners, inner = SHAPES[shape]
    middle, size, turn = rng.uniform(0.4, 0.6, 2) * side, rng.uniform(0.25, 0.4) * side, rng.uniform(0, 2 * math.pi)
    angles = turn + math.pi * np.arange(2 * corners) / corners
    # The points between two corners lie on the edge, or further in for a star and a cross.
    radii = np.where(np.arange(2 * corners) % 2, inner * math.cos(math.pi / corners), 1.0) * size
    points = np.stack([middle[0] + radii * np.cos(angles), middle[1] + radii * np.sin(angles)], axis=1)
    pen.polygon([tuple(point) for point in points.tolist()], fill=(red, green, blue))
    noisy = np.asarray(image, dtype=np.float64) + rng.normal(0, 12, (side, side, 3))
    return Image.fromarray(noisy.clip(0, 255).astype(np.uint8))


def main(arguments: list[str] | None = None) -> Path:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", default="photos")
    folder = draw_photos(parser.parse_args(arguments).folder)
    print(f"{len(list(folder.glob('*/*.jpg')))} photos of {len(list(folder.iterdir()))} kinds: {folder}")
    return folder


if __name__ == "__main__":
    main()
