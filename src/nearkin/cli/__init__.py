"""The command line: parse, call, print. One file per group of commands, each adding its own to the application."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import NoReturn

from rich.console import Console

# The order here is the order in which --help lists the commands.
from nearkin.cli._app import app, error_line, escape

from nearkin.cli.training import embed, evaluate, train  # isort: skip
from nearkin.cli.export import export  # isort: skip
from nearkin.cli.index import index  # isort: skip
from nearkin.cli.search import classify, search  # isort: skip
from nearkin.cli.groups import cluster, duplicates  # isort: skip
from nearkin.cli.serve import serve  # isort: skip
from nearkin.cli.plot import plot  # isort: skip
from nearkin.cli.compare import compare  # isort: skip
from nearkin.cli.mlrc import mlrc  # isort: skip
from nearkin.cli.reproduce import reproduce  # isort: skip
from nearkin.cli.tune import tune  # isort: skip
from nearkin.cli.report import report, table  # isort: skip
from nearkin.cli.listing import backbones, datasets, keys, losses, methods, plots, recipes, scores  # isort: skip
from nearkin.cli.cache import cache  # isort: skip
from nearkin.disk import REFUSED, output_error
from nearkin.errors import NearkinError, catching_out_of_memory, lacks_torch, notices_to

__all__ = [
    "app",
    "backbones",
    "cache",
    "classify",
    "cluster",
    "compare",
    "datasets",
    "duplicates",
    "embed",
    "evaluate",
    "export",
    "index",
    "keys",
    "losses",
    "main",
    "methods",
    "mlrc",
    "plot",
    "plots",
    "recipes",
    "report",
    "reproduce",
    "scores",
    "search",
    "serve",
    "table",
    "train",
    "tune",
]


def main() -> None:
    """Run the command line; errors a person can put right are printed without a traceback."""
    try:
        with _one_of_several(), notices_to(_say), catching_out_of_memory():
            app()
    except NearkinError as error:
        _fail(error)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        _fail(lacks_torch("this command"))
    except KeyboardInterrupt:
        if _speaks():
            Console(stderr=True).print("interrupted")
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(0)
    except OSError as error:
        if error.errno not in REFUSED:
            raise
        _fail(output_error(error))


def _say(text: str) -> None:
    Console(stderr=True).print(f"[yellow]note:[/yellow] {escape(text)}", highlight=False, soft_wrap=True)


def _fail(error: NearkinError) -> NoReturn:
    if _speaks():
        error_line(str(error))
    sys.exit(error.exit_code)


@contextlib.contextmanager
def _one_of_several() -> Iterator[None]:
    """Join the processes that torchrun has started, of which only the first speaks; alone, do nothing."""
    if not _is_one_of_several():
        yield
        return
    from nearkin import ranks

    with ranks.joined(), contextlib.ExitStack() as silence:
        if not ranks.is_first():
            nowhere = silence.enter_context(open(os.devnull, "w", encoding="utf-8"))
            silence.enter_context(contextlib.redirect_stdout(nowhere))
            silence.enter_context(contextlib.redirect_stderr(nowhere))
        yield


def _is_one_of_several() -> bool:
    # What is no number is for nearkin.ranks to refuse, which is too slow to import for a process alone.
    return (os.environ.get("WORLD_SIZE") or "1") != "1"


def _speaks() -> bool:
    """Whether it is for this process to say what went wrong: of several, for the first that fails."""
    if not _is_one_of_several():
        return True
    from nearkin import ranks

    return ranks.is_first_to_fail()
