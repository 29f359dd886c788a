"""Docstrings as this project writes them: sections in Google's manner, and things named by the module they stand in.

The reference lists things by their public names (``nearkin.Recipe``), while annotations and docstrings know the modules
that define them (``nearkin.recipe.recipe.Recipe``): an end of a name that only one listed thing has is that thing.
"""

from __future__ import annotations

from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.ext.napoleon import Config
from sphinx.ext.napoleon.docstring import GoogleDocstring
from sphinx.util.nodes import make_refnode

_CONFIG = Config()


def _sections(app: Sphinx, what: str, name: str, subject: Any, options: Any, lines: list[str]) -> None:
    """``Args:`` and its like become lists. Napoleon as an extension would also take an attribute's sentence apart at a
    colon, as a type and what follows."""
    if what not in ("attribute", "data", "property"):
        lines[:] = GoogleDocstring(lines, _CONFIG, app, what, name, subject, options).lines()


def _by_its_end(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.TextElement
) -> nodes.reference | None:
    if node["refdomain"] != "py":
        return None
    listed = {name: entry for name, entry in env.domains.python_domain.objects.items() if not entry.aliased}
    words = node["reftarget"].split(".")
    for first in range(len(words)):  # as much of the name as agrees with only one
        end = "." + ".".join(words[first:])
        found = [(name, entry) for name, entry in listed.items() if name.endswith(end)]
        if found:
            break
    if len(found) != 1 or (node["reftype"] == "class" and found[0][1].objtype not in ("class", "exception")):
        return None
    name, entry = found[0]
    return make_refnode(app.builder, node["refdoc"], entry.docname, entry.node_id, content, name)


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", _sections)
    app.connect("missing-reference", _by_its_end)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
