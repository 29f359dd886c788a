"""Formulas as MathML, which browsers draw by themselves: neither a script nor pictures have to come along.

Docutils translates them. Of what this project's formulas need it lacks two things, which are put into its words first:
delimiters of a size that do not tell left from right, and lines without an environment around them.
"""

from __future__ import annotations

import html
import re
from typing import Any

from docutils import nodes
from docutils.utils.math import MathError, latex2mathml
from sphinx.application import Sphinx
from sphinx.util.logging import getLogger

_LOG = getLogger(__name__)


def mathml(formula: str, *, as_block: bool) -> str:
    """The MathML of a formula in LaTeX.

    >>> mathml("x^2", as_block=False).startswith("<math")
    True
    """
    formula = re.sub(r"\\([bB]igg?)(?=[(\[{]|\\(?:\{|l[a-z]+))", r"\\\1l", formula.strip())
    formula = re.sub(r"\\([bB]igg?)(?=[)\]}]|\\(?:\}|r[a-z]+))", r"\\\1r", formula)
    if r"\\" in re.sub(r"\\begin\{(\w+\*?)\}.*?\\end\{\1\}", "", formula, flags=re.S):
        formula = rf"\begin{{aligned}}{formula}\end{{aligned}}"
    drawn: str = latex2mathml.tex2mathml(formula, as_block=as_block)
    # Bars that are not told how large they are grow with what stands beside them, the left of a pair and not the right.
    return re.sub(r"<mo( class=\"\w+\")?>([|‖∥])</mo>", r'<mo\1 stretchy="false">\2</mo>', drawn)


def _html(node: nodes.Element, *, as_block: bool) -> str:
    try:
        return mathml(node.astext(), as_block=as_block)
    except MathError as error:  # a warning ends the build
        _LOG.warning("formula not understood (%s): %s", error, node.astext(), location=node)
        return f"<code>{html.escape(node.astext())}</code>"


def _inline(translator: Any, node: nodes.Element) -> None:
    translator.body.append(_html(node, as_block=False))
    raise nodes.SkipNode


def _block(translator: Any, node: nodes.Element) -> None:
    translator.body.append(f'<div class="formula">{_html(node, as_block=True)}</div>\n')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", inline_renderers=(_inline, None), block_renderers=(_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
