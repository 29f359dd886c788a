"""What the sections of the page are put together from: thumbnails, charts, and blocks to open or to copy."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from nearkin.report.opened_run import OpenedRun

THUMBNAIL_SIDE = 88
IMAGE_BUDGET = 5_500_000
"""Characters that all thumbnails together may take, so that the page stays well below eight megabytes."""


@dataclass
class Payload:
    """What the page's script reads: thumbnails, each once however often it is shown, and charts."""

    images: list[str] = field(default_factory=list)
    charts: list[dict[str, Any]] = field(default_factory=list)
    refused: int = 0
    """So many images did not fit."""
    _places: dict[tuple[int, int], int | None] = field(default_factory=dict)
    _characters: int = 0

    def image(self, run: OpenedRun, row: int) -> int | None:
        """The number of the thumbnail of a row of a run's table, or None where the page is full."""
        key = (id(run.data), row)
        if key not in self._places:
            text = thumbnail(run.data.images[row])
            if self._characters + len(text) > IMAGE_BUDGET:
                self.refused += 1
                self._places[key] = None
            else:
                self._characters += len(text)
                self._places[key] = len(self.images)
                self.images.append(text)
        return self._places[key]

    def chart(self, spec: Mapping[str, Any], *, caption: str, label: str) -> str:
        """A place for the script to draw in. ``label`` says in words what is drawn."""
        self.charts.append(dict(spec))
        return (
            f'<figure class="chart {escape(spec["kind"])}" data-chart="{len(self.charts) - 1}" '
            f'data-label="{escape(label)}"><figcaption>{escape(caption)}</figcaption></figure>'
        )

    def as_script(self) -> str:
        """JSON that may stand inside a script element: nothing in it can end the element."""
        text = json.dumps({"images": self.images, "charts": self.charts}, ensure_ascii=True, allow_nan=False)
        return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def thumbnail(pixels: NDArray[np.uint8]) -> str:
    """A data URI of a small copy of an image, in whichever of JPEG and PNG is shorter."""
    image = Image.fromarray(pixels).convert("RGB")
    image.thumbnail((THUMBNAIL_SIDE, THUMBNAIL_SIDE), Image.Resampling.LANCZOS)
    texts = []
    for kind, options in (("jpeg", {"quality": 80}), ("png", {"optimize": True})):
        content = io.BytesIO()
        image.save(content, kind, **options)
        texts.append(f"data:image/{kind};base64,{base64.b64encode(content.getvalue()).decode()}")
    return min(texts, key=len)


def shot(payload: Payload, run: OpenedRun, row: int, *, right: bool | None = None, note: str = "") -> str:
    """An image with its class below; right and wrong by a sign as well as by a colour."""
    image, name = payload.image(run, row), run.data.table.class_names[run.data.table.labels[row]]
    kind, sign = {None: ("plain", ""), True: ("right", "✓"), False: ("wrong", "✗")}[right]
    mark = f'<span class="mark" role="img" aria-label="{kind}">{sign}</span>' if sign else ""
    picture = (
        f'<img data-image="{image}" alt="{escape(name)}" width="{THUMBNAIL_SIDE}" height="{THUMBNAIL_SIDE}">'
        if image is not None
        else '<span class="no-image">no image</span>'
    )
    below = f'<span class="note">{escape(note)}</span>' if note else ""
    return (
        f'<figure class="shot {kind}" title="{escape(name)}"><span class="frame">{picture}{mark}</span>'
        f"<figcaption>{escape(name)}{below}</figcaption></figure>"
    )


def details(summary: str, body: str, *, opened: bool = False) -> str:
    """A block that opens at a click; ``summary`` is text, ``body`` is HTML."""
    return f"<details{' open' if opened else ''}><summary>{escape(summary)}</summary>{body}</details>"


def code(text: str) -> str:
    """Text as it stands, with a button that copies it."""
    button = '<button type="button" class="copy">Copy</button>'
    return f'<div class="code">{button}<pre><code>{escape(text)}</code></pre></div>'
