"""How the documentation becomes a site: ``make docs``. It opens from the disk and needs no network."""

from __future__ import annotations

import sys
from pathlib import Path

import nearkin

sys.path.insert(0, str(Path(__file__).parent / "_extensions"))

project = "nearkin"
author = "the authors of nearkin"
release = version = nearkin.__version__
html_title = f"nearkin {release.partition('+')[0]}"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.viewcode",
    "mathml",
    "catalogued",
    "docstrings",
    "mermaid_picture",
    "repository_links",
    "search_page",
]
exclude_patterns = ["_build", "_extensions", "_templates"]
templates_path = ["_templates"]

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_math_renderer = "mathml"
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False

myst_enable_extensions = ["amsmath", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3  # the anchors that a plain git viewer gives headings, too

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
autodoc_inherit_docstrings = False  # what a part overrides says nothing new

nitpicky = True
nitpick_ignore_regex = [
    (r"py:.*", r"(torch|numpy|rich|collections|dataclasses|pathlib|types|typing)\..*"),
    (r"py:class", r"nearkin\..*"),  # types in signatures that nobody has to name
    (
        r"py:class",
        r"Module|Tensor|Path|NDArray|np\..*|ImageInput|OneQuery|Queries|Arrays|Images|Vectors|Format|Progress|ExportResult",
    ),  # aliases of types, and what is imported for types only
]
