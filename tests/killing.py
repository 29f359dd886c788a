"""For tests that kill a process at a certain event: children of one interpreter, and what each left behind.

A script that :func:`run_script` runs imports what its children need once, and forks into one after another.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys


def count_events(until, *owners_and_names):
    """Each call of the functions named is an event before and one after; at number ``until`` the process is killed."""
    seen = [0]

    def event():
        seen[0] += 1
        if seen[0] == until:
            os.kill(os.getpid(), signal.SIGKILL)

    def before_and_after(inner):
        def wrapped(*a, **k):
            event()
            result = inner(*a, **k)
            event()
            return result

        return wrapped

    for owner, name in owners_and_names:
        setattr(owner, name, before_and_after(getattr(owner, name)))
    return seen


def in_child(work):
    """The words that a child prints to the file that ``work`` gets, and how it ended."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        code = 1
        try:
            with os.fdopen(writing, "w", buffering=1) as out:
                work(out)
            code = 0
        finally:
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading) as told:
        words = told.read().split()
    return words, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def run_script(script, *arguments):
    """What a script prints, in an interpreter of its own with one thread: threads of torch do not survive a fork."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
