"""``.. catalogued:: nearkin.losses`` writes out every part of a catalogue: a part that is added is in the reference."""

from __future__ import annotations

import importlib

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective


class Catalogued(SphinxDirective):
    """The class behind each name in the ``catalogue()`` of a package, with its own members."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        package = importlib.import_module(self.arguments[0])
        lines: list[str] = []
        for name, part in package.catalogue().items():
            place = package.__name__ if hasattr(package, part.__name__) else part.__module__
            lines += [f".. rubric:: ``{name}``", "", f".. autoclass:: {place}.{part.__name__}", "   :members:", ""]
        return self.parse_text_to_nodes("\n".join(lines))


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("catalogued", Catalogued)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
