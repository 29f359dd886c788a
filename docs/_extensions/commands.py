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
        for text in (command.help or "").split("\n\n"):
            section += paragraph(text)
        rows = nodes.definition_list()
        for parameter in command.params:
            shown = [*parameter.opts, *parameter.secondary_opts] if parameter.param_type_name == "option" else None
            if getattr(parameter, "hidden", False) or shown == ["--help"]:
                continue
            term = nodes.term()
            term += nodes.literal("", ", ".join(shown) if shown else (parameter.metavar or parameter.name).upper())
            meaning = nodes.definition("", paragraph(getattr(parameter, "help", None) or ""))
            rows += nodes.definition_list_item("", term, meaning)
        section += rows
        return section


def commands(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    """The commands below one, groups before what is in them."""
    for word, inner in sorted(getattr(command, "commands", {}).items()):
        if not inner.hidden:
            yield f"{name} {word}", inner
            yield from commands(f"{name} {word}", inner)


def paragraph(text: str) -> nodes.paragraph:
    """A text of the command line; what it has in ``[bold]``, and options, are what to type."""
    made = nodes.paragraph()
    text = re.sub(r"(?<![\w\[-])(--[a-z][a-z-]*)(?![^\[]*\[/bold\])", r"[bold]\1[/bold]", " ".join(text.split()))
    for place, words in enumerate(re.split(r"\[bold\](.*?)\[/bold\]", text)):
        made += nodes.literal("", words) if place % 2 else nodes.Text(words)
    return made


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("commands", Commands)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
