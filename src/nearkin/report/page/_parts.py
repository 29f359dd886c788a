"""What the sections of the page are put together from: escaped text, thumbnails, charts and tables."""

from __future__ import annotations

import base64
import html
import io
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

THUMBNAIL_SIDE = 88
IMAGE_BUDGET = 5_500_000
"""Characters that all thumbnails together may take, so that the page stays well below eight megabytes."""


@dataclass(frozen=True)
class Section:
    """A part of the page under a heading of its own."""

    name: str
    """The anchor that links lead to."""
    title: str
    body: str


@dataclass
class Payload:
    """What the page's script reads: thumbnails, each once however often it is shown, and charts."""

    images: list[str] = field(default_factory=list)
    charts: list[dict[str, Any]] = field(default_factory=list)
    refused: set[Any] = field(default_factory=set)
    """Keys of images that did not fit."""
    _places: dict[Any, int] = field(default_factory=dict)
    _characters: int = 0

    def image(self, key: Any, pixels: NDArray[np.uint8]) -> int | None:
        """The number of a thumbnail, or None where the page is full. ``key`` tells images apart."""
        if key in self.refused:
            return None
        if key not in self._places:
            text = thumbnail(pixels)
            if self._characters + len(text) > IMAGE_BUDGET:
                self.refused.add(key)
                return None
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
    best = ""
    for kind, options in (("jpeg", {"quality": 80}), ("png", {"optimize": True})):
        content = io.BytesIO()
        image.save(content, kind, **options)
        text = f"data:image/{kind};base64,{base64.b64encode(content.getvalue()).decode()}"
        best = text if not best or len(text) < len(best) else best
    return best


def escape(text: object) -> str:
    """Text for HTML, between tags and in attributes.

    >>> escape('<b title="x">')
    '&lt;b title=&quot;x&quot;&gt;'
    """
    return html.escape(str(text), quote=True)


def shot(image: int | None, name: str, *, right: bool | None = None, note: str = "") -> str:
    """An image with its class below; right and wrong by a sign as well as by a colour."""
    kind = {None: "plain", True: "right", False: "wrong"}[right]
    sign = {None: "", True: "✓", False: "✗"}[right]
    said = {None: "", True: "right", False: "wrong"}[right]
    mark = f'<span class="mark" role="img" aria-label="{said}">{sign}</span>' if sign else ""
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


def table(
    headings: Sequence[str],
    rows: Iterable[str],
    *,
    kind: str = "",
    caption: str = "",
    numbers: Callable[[int], bool] = lambda column: column > 0,
) -> str:
    """A table that scrolls sideways where the screen is narrow; ``numbers`` says which columns are of numbers."""
    cells = "".join(
        f'<th scope="col"{" class=number" if numbers(place) else ""}>{escape(heading)}</th>'
        for place, heading in enumerate(headings)
    )
    said = f"<caption>{escape(caption)}</caption>" if caption else ""
    return (
        f'<div class="scroll" tabindex="0"><table class="{kind}">{said}<thead><tr>{cells}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def details(summary: str, body: str, *, opened: bool = False) -> str:
    """A block that opens at a click; ``summary`` is text, ``body`` is HTML."""
    return f"<details{' open' if opened else ''}><summary>{escape(summary)}</summary>{body}</details>"


def code(text: str) -> str:
    """Text as it stands, with a button that copies it."""
    button = '<button type="button" class="copy">Copy</button>'
    return f'<div class="code">{button}<pre><code>{escape(text)}</code></pre></div>'


def legend(entries: Sequence[tuple[int, str]]) -> str:
    """Places and names of the series of a section's line charts; a click hides one or shows it again."""
    buttons = "".join(
        f'<button type="button" class="series" aria-pressed="true" data-series="{place}">'
        f'<svg class="key" width="28" height="10" aria-hidden="true"><line class="line dash-{place % 4}" x1="1" y1="5" '
        f'x2="27" y2="5" style="stroke:var(--run-{place % 8})"></line></svg>{escape(name)}</button>'
        for place, name in entries
    )
    return f'<div class="legend">{buttons}</div>'


def rounded(value: float | None) -> float | None:
    """A number short enough for the page; None for what is no number.

    >>> rounded(0.123456789), rounded(float("nan"))
    (0.123457, None)
    """
    return None if value is None or not math.isfinite(value) else float(f"{value:.6g}")


def counted(number: int, one: str, many: str | None = None) -> str:
    """A number with its noun.

    >>> counted(1, "class", "classes"), counted(1200, "image")
    ('1 class', '1,200 images')
    """
    return f"{number:,} {one if number == 1 else many or one + 's'}"
