"""The picture of what searches found."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from nearkin.index import Index
from nearkin.report.contact_sheet import draw_groups, draw_sheet
from nearkin.runs.model import Model


def mean_colour(images, batch_size):
    return np.array([image.mean(axis=(0, 1)) / 500 + 0.1 for image in images], dtype=np.float32).reshape(-1, 3)


def test_queries_and_hits_are_drawn(tmp_path):
    colours = np.random.default_rng(0).integers(0, 256, (25, 1, 1, 3), dtype=np.uint8)
    index = Index.create(tmp_path / "index", Model(Path("nowhere"), "x", 3, "cosine", 32, mean_colour))
    index.add([np.tile(colour, (30, 40, 1)) for colour in colours], labels=["5 $ & a long name of a class"] * 25)
    Image.new("RGB", (60, 30), "red").save(tmp_path / "red.png")
    hits = index.search(0, k=24)
    heights = []
    for number, found in enumerate(([("", hits[:3])], [(str(tmp_path / "red.png"), hits)], [("", [])])):
        draw_sheet(tmp_path / f"{number}.png", index, found)
        with Image.open(tmp_path / f"{number}.png") as drawn:
            heights.append(drawn.height)
            pixels = np.array(drawn.convert("RGB")).reshape(-1, 3)
    assert heights[1] > 2 * heights[0]
    assert (pixels == 255).all(), "nothing found, nothing drawn"


def test_groups_are_drawn(tmp_path):
    colours = np.random.default_rng(0).integers(0, 200, (30, 1, 1, 3), dtype=np.uint8)
    index = Index.create(tmp_path / "index", Model(Path("nowhere"), "x", 3, "cosine", 32, mean_colour))
    index.add([np.tile(colour, (30, 40, 1)) for colour in colours], labels=["a"] * 30)
    heights = []
    for number, groups in enumerate(([("one $", [3, 7])], [("one", range(25)), ("two", [26])], [])):
        draw_groups(tmp_path / f"{number}.png", index, groups)
        with Image.open(tmp_path / f"{number}.png") as drawn:
            heights.append(drawn.height)
            pixels = np.array(drawn.convert("RGB")).reshape(-1, 3)
        if groups:
            for id in groups[0][1]:
                near = np.abs(pixels.astype(int) - colours[id].reshape(3)).max(axis=1) <= 6  # thumbnails are JPEG
                assert near.sum() > 100, "every item of the group is there"
    assert heights[1] > 3 * heights[0]
    assert (pixels == 255).all()
