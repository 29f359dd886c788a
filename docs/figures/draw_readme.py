"""The two pictures of README.md, from what ``make demo`` leaves behind.

    python docs/figures/draw_readme.py runs/demo runs/demo.index

The first is the run's own ``neighbours.png`` with fewer and larger images; its queries are drawn by chance. The second
is a screenshot of ``nearkin serve`` in Chromium (package playwright). Both are made small: few colours, no more than
what a page is wide.
"""

from __future__ import annotations

import contextlib
import io
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import uvicorn
from PIL import Image, ImageColor
from playwright.sync_api import sync_playwright

import nearkin
from nearkin.report.figures import neighbours
from nearkin.runs.folder import RunFolder
from nearkin.serving.app import create_app

FIGURES = Path(__file__).resolve().parent
KIND = "U+10E3 უ"
"""Of the item whose neighbours the gallery shows: that of the first query in the other picture."""


def save(image: Image.Image, name: str, *, width: int, greys: int, others: Sequence[tuple[int, int, int]]) -> None:
    """A small file: so many greys, and the other colours that the picture has."""
    small = image.convert("RGB").resize((width, round(image.height * width / image.width)), Image.Resampling.LANCZOS)
    levels = [(level, level, level) for level in (round(255 * step / (greys - 1)) for step in range(greys))]
    palette = Image.new("P", (1, 1))
    palette.putpalette([value for colour in (*levels, *others) for value in colour])
    small.quantize(palette=palette, dither=Image.Dither.NONE).save(FIGURES / name, optimize=True)
    print(f"{name}: {small.width} × {small.height}, {(FIGURES / name).stat().st_size / 1e3:.0f} kB")


def before_and_after(run: Path) -> None:
    neighbours.QUERIES, neighbours._SHOWN = 4, {2: 5}
    with tempfile.TemporaryDirectory() as folder:
        copy = shutil.copytree(run, Path(folder) / "demo")
        drawn = neighbours.draw_neighbours(RunFolder(copy))
        assert drawn is not None
        with Image.open(drawn) as image:
            save(
                image,
                "before-and-after.png",
                width=1200,
                greys=12,
                others=[ImageColor.getrgb(each)[:3] for each in (neighbours.RIGHT, neighbours.WRONG)],
            )


def gallery(index: Path) -> None:
    with contextlib.closing(nearkin.Index.open(index)) as opened, socket.socket() as place, sync_playwright() as player:
        place.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(create_app(opened), log_config=None))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [place]}, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.05)
        item = int(opened.ids({"label": KIND})[0])
        browser = player.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1500, "height": 820}, color_scheme="light")
        page.set_default_timeout(120_000)
        page.goto(f"http://127.0.0.1:{place.getsockname()[1]}/#id={item}")
        page.wait_for_load_state("networkidle")
        with Image.open(io.BytesIO(page.screenshot())) as image:
            save(
                image,
                "gallery.png",
                width=1240,
                greys=24,
                others=[(252, 251, 248), (239, 238, 234), (128, 80, 32), (190, 160, 130)],
            )
        browser.close()
        server.should_exit = True
        thread.join(20)


if __name__ == "__main__":
    run, index = map(Path, sys.argv[1:])
    before_and_after(run)
    gallery(index)
