"""Sphinx's own search page is ``find.html``: ``search.html`` is the page on searching images, ``docs/search.md``."""

from __future__ import annotations

from typing import Any

from sphinx.application import Sphinx
from sphinx.builders.html import StandaloneHTMLBuilder


class Site(StandaloneHTMLBuilder):
    """The ``html`` builder but for the name of one page; ``_templates/sidebar/search.html`` leads there."""

    def handle_page(self, pagename: str, addctx: dict[str, Any], templatename: str = "page.html", **more: Any) -> None:
        name = "find" if templatename == "search.html" else pagename
        super().handle_page(name, addctx, templatename, **more)


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_builder(Site, override=True)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
