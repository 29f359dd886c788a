"""The command line. Each file has a group of commands, which it adds to the application."""

from __future__ import annotations

import contextlib
import inspect
import io
import os
import re
import sys
from collections.abc import Iterator
from functools import partial
from typing import NoReturn

# The order here is the order of the commands in --help.
from nearkin.cli._app import app, is_distributed, label_line, say

from nearkin.cli import training, index, search, report, studies, look_up  # noqa: F401  # isort: skip
from nearkin.disk import REFUSED, output_error
from nearkin.errors import MissingExtraError, NearkinError, catching_out_of_memory, notices_to

__all__ = ["app", "main"]

for command in (*app.registered_commands, *index.commands.registered_commands):
    # Typer keeps the line breaks of a docstring, which in a narrow terminal would make ragged paragraphs.
    command.help = re.sub(r"(?<!\n)\n(?!\n)", " ", inspect.getdoc(command.callback) or "")


def main() -> None:
    """Run the command line; errors that a person can correct are printed without a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)  # whoever reads a pipe sees each line at once
    try:
        with _joined_processes(), notices_to(partial(label_line, "note", "yellow")), catching_out_of_memory():
            app()
    except NearkinError as error:
        _fail(error)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        _fail(MissingExtraError("this command needs torch, which is not installed here: pip install torch"))
    except KeyboardInterrupt:
        if _prints_errors():
            say("interrupted", stderr=True)
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(0)
    except OSError as error:
        if error.errno not in REFUSED:
            raise
        _fail(output_error(error))


def _fail(error: NearkinError) -> NoReturn:
    if _prints_errors():
        label_line("error", "bold red", str(error))
    sys.exit(error.exit_code)


@contextlib.contextmanager
def _joined_processes() -> Iterator[None]:
    """Join the processes that torchrun has started, of which only the first prints; without torchrun, do nothing."""
    if not is_distributed():
        yield
        return
    from nearkin import ranks

    with ranks.joined(), contextlib.ExitStack() as silence:
        if not ranks.is_first():
            null = silence.enter_context(open(os.devnull, "w", encoding="utf-8"))
            silence.enter_context(contextlib.redirect_stdout(null))
            silence.enter_context(contextlib.redirect_stderr(null))
        yield


def _prints_errors() -> bool:
    """Whether this process prints an error: of several processes, the first that fails."""
    if not is_distributed():
        return True
    from nearkin import ranks

    return ranks.is_first_to_fail()
