"""Prints docs/commands.md: every command with every argument and option, read off the application.

    python docs/write_commands.py > docs/commands.md

`make added` writes it, and a test says when the page is another.
"""

from __future__ import annotations

import inspect
import re
import typing
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from typer.main import get_command

from nearkin.cli import app
from nearkin.report.listings import values_of
from nearkin.report.table import markdown_table

INTRO = """# Commands

`nearkin COMMAND --help` shows the same. `make added` writes this page.
What a command takes as `key=value` are the [keys of a recipe](recipe_keys.md)."""


SHARED_BY = 3
"""An option that so many commands have, with the same words, is described once."""


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Every command by its words, in the order of ``--help``."""
    for name in group.list_commands(None):
        command = group.commands[name]
        yield " ".join((*path, name)), command
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))


def rows_of(command: Any) -> list[tuple[str, ...]]:
    """A row for each argument and option of a command."""
    kinds = typing.get_type_hints(command.callback) if command.callback else {}
    return [
        (
            _names(each),
            _of(each, kinds[each.name]),
            _default(each),
            _options_as_code(" ".join((each.help or "").split())),
        )
        for each in command.params
    ]


def section(name: str, command: Any, shared: Sequence[tuple[str, ...]]) -> str:
    text = inspect.cleandoc(command.help or "")
    # What the terminal shows in bold are commands.
    text = re.sub(r"\[bold\](.*?)\[/bold\]", lambda found: f"`{' '.join(found[1].split())}`", text, flags=re.S)
    parts = [f"## `nearkin {name}`", _options_as_code(text)]
    rows = rows_of(command)
    if own := [row for row in rows if row not in shared]:
        parts.append(table(own))
    if also := [row[0] for row in rows if row in shared]:
        parts.append(f"[Also](#shared-options): {', '.join(also)}.")
    return "\n\n".join(parts)


def table(rows: Sequence[Sequence[str]]) -> str:
    return markdown_table([("argument or option", "takes", "default", "meaning"), *rows])


def _options_as_code(text: str) -> str:
    """In running text two hyphens would be drawn as a dash."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(
        part if part.startswith("`") else re.sub(r"(?<![\w-])--[a-z][a-z-]*", r"`\g<0>`", part) for part in parts
    )


def _names(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{parameter.metavar or parameter.name.upper()}`"
    return ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))


def _of(parameter: Any, kind: Any) -> str:
    """What stands behind an option, by the type of the function's argument."""
    if parameter.param_type_name == "argument" or kind is bool or kind == bool | None:
        return ""
    several = ", again for each" if parameter.multiple else ""
    kinds = [each for each in typing.get_args(kind) or [kind] if each is not type(None)]
    if typing.get_origin(kind) is typing.Literal or kinds == [kind]:
        kinds = [kind]
    inner = [typing.get_args(each)[0] if typing.get_origin(each) is list else each for each in kinds]
    return " or ".join("path" if each is Path else values_of(each) for each in inner) + several


def _default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    return "" if parameter.default is None or parameter.default is False else f"`{parameter.default}`"


def page() -> str:
    group = get_command(app)
    exit_codes = _options_as_code(group.epilog.removeprefix("Exit codes: "))
    known = list(commands(group))
    counted = Counter(row for _, command in known for row in rows_of(command))
    shared = [row for row, count in counted.items() if count >= SHARED_BY and row[0].startswith("`-")]
    parts = [INTRO, *(section(name, command, shared) for name, command in known)]
    parts += [f"## Shared options\n\n{table(shared)}", f"## Exit codes\n\n{exit_codes}"]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    print(page(), end="")
