"""Links to files of the repository that are no pages of the site: a git viewer follows them, the site names them."""

from __future__ import annotations

import re
from typing import Any

LINK = re.compile(r"\[([^\]]+)\]\(\.\./([^)#]+)[^)]*\)")


def name_files(_app: Any, _page: str, source: list[str]) -> None:
    source[0] = LINK.sub(r"\1: `\2`", source[0])


def setup(app: Any) -> dict[str, bool]:
    app.connect("source-read", name_files)
    return {"parallel_read_safe": True}
