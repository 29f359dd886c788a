"""A diagram in mermaid, which a git viewer draws by a script, is on the site the picture that was drawn of it.

``docs/figures/draw_flow.py`` draws it from the same text.
"""

from __future__ import annotations

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform


class MermaidPicture(SphinxTransform):
    default_priority = 210  # before pictures are collected

    def apply(self, **_: object) -> None:
        for block in list(self.document.findall(nodes.literal_block)):
            if block.get("language") == "mermaid":
                block.replace_self(
                    nodes.image(uri="figures/flow.png", alt="The stations of a run and what passes between them")
                )


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_transform(MermaidPicture)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
