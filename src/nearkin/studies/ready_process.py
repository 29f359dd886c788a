"""The process that forks into jobs: it imports what they need, then forks for every line of its standard input.

Started by :class:`nearkin.studies.starter.Starter`, and imported by nothing.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import runpy
import select
import signal
import sys
from typing import Any

IMPORTED = ("nearkin.cli", "nearkin.report.score_tables", "nearkin.runs.final", "nearkin.runs.run", "torch._dynamo")
"""What ``nearkin train`` imports on its way to the first step; torch's optimisers bring the compiler with them."""
_POLL_SECONDS = 0.05


def _serve() -> dict[str, Any] | None:
    """Fork for every line of standard input until it ends, and tell when a job begins and ends.

    A fork returns what it was asked for, the process itself nothing.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the jobs, and for who asked for them
    for name in IMPORTED:
        importlib.import_module(name)
    unread, running, open_ = b"", 0, True
    while open_ or running:
        if open_ and select.select([0], [], [], _POLL_SECONDS)[0]:
            more = os.read(0, 1 << 16)
            open_, unread = bool(more), unread + more
            *lines, unread = unread.split(b"\n")
            for line in lines:
                pid = os.fork()
                if pid == 0:
                    job: dict[str, Any] = json.loads(line)
                    return job
                running += 1
                print("began", pid, 0, flush=True)
        while running:
            pid, status = os.waitpid(-1, os.WNOHANG if open_ else 0)
            if pid == 0:
                break
            running -= 1
            print("ended", pid, os.waitstatus_to_exitcode(status), flush=True)
    return None


def _become(command: list[str], log: str) -> None:
    """In a new fork: do as ``python COMMAND`` with its output in a file would."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for target, path, mode in ((0, os.devnull, os.O_RDONLY), (1, log, os.O_WRONLY)):
        opened = os.open(path, mode)
        os.dup2(opened, target)
        os.close(opened)
    os.dup2(1, 2)
    _, module, *arguments = command
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    wanted = None
    with contextlib.suppress(BrokenPipeError):  # who asked for the jobs is gone
        wanted = _serve()
    if wanted is not None:
        _become(**wanted)
