"""``.. commands::`` writes out the command line: every command with its arguments and options, as ``--help`` does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from typer.main import get_command

from nearkin.cli import app as nearkin


class Commands(SphinxDirective):
    """A section for each command, those of a group after it."""

    def run(self) -> list[nodes.Node]:
        return [self.section(name, command) for name, command in commands("nearkin", get_command(nearkin))]

    def section(self, name: str, command: Any) -> nodes.section:
        section = nodes.section(ids=[nodes.make_id(name)])
        section += nodes.title("", name)
        for paragraph in plain(command.help).split("\n\n"):
            section += nodes.paragraph("", " ".join(paragraph.split()))
        rows = nodes.definition_list()
        for parameter in command.params:
            shown = [*parameter.opts, *parameter.secondary_opts] if parameter.param_type_name == "option" else None
            if getattr(parameter, "hidden", False) or shown == ["--help"]:
                continue
            term = nodes.term()
            term += nodes.literal("", ", ".join(shown) if shown else (parameter.metavar or parameter.name).upper())
            meaning = nodes.paragraph("", " ".join(plain(getattr(parameter, "help", None)).split()))
            rows += nodes.definition_list_item("", term, nodes.definition("", meaning))
        section += rows
        return section


def commands(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    """The commands below one, groups before what is in them."""
    for word, inner in sorted(getattr(command, "commands", {}).items()):
        if not inner.hidden:
            yield f"{name} {word}", inner
            yield from commands(f"{name} {word}", inner)


def plain(text: str | None) -> str:
    """Without rich's marks, as ``[bold]``."""
    return re.sub(r"\[/?[a-z]+\]", "", text or "")


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("commands", Commands)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
