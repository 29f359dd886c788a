"""How jobs are started: as forks of a process that has imported what they need, or as new processes.

On a GPU host a run spends seconds on its imports, and several that start together more; so one process pays for them,
and forks into one job after another (:mod:`nearkin.studies.ready_process`). A fork is a process of its own all the
same: what a job does to itself, or dies of, does not reach the others. Elsewhere than on Linux forking is not safe, and
each job is a new process.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, Self

from nearkin.errors import NearkinError

PYTHON = (sys.executable,)


class Process(Protocol):
    """What the pool asks of a job that runs."""

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""

    def terminate(self) -> None: ...

    def kill(self) -> None: ...

    def wait(self) -> int: ...


class Starter:
    """Starts jobs, from :meth:`__enter__` on, each as a process whose output goes to a file.

    Args:
        at_once: how many jobs will run side by side; they share the cores.
    """

    def __init__(self, at_once: int) -> None:
        self._environment = dict(os.environ)
        # Each job would otherwise start as many threads as there are cores, and they would wait for each other.
        self._environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // at_once)))
        self._forks: _Forks | None = None

    def __enter__(self) -> Self:
        if sys.platform == "linux" and (sys.executable,) == PYTHON:
            self._forks = _Forks(self._environment)
        return self

    def __exit__(self, *_: object) -> None:
        if self._forks is not None:
            self._forks.close()

    def start(self, command: Sequence[str], log: Path) -> Process:
        """Run ``python COMMAND``, where the command is a module's: ``-m``, its name, its arguments."""
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "wb") as output:
            if self._forks is not None:
                return self._forks.start(command, log)
            return subprocess.Popen(
                [*PYTHON, *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._environment,
            )


class _Forks:
    """This side of the process that forks: it is told what to start, and tells how each job ended."""

    def __init__(self, environment: dict[str, str]) -> None:
        # Python warns of forks beside threads; those of a BLAS library know how to be forked.
        python = [*PYTHON, "-W", "ignore::DeprecationWarning", "-m", "nearkin.studies.ready_process"]
        self._process = subprocess.Popen(
            python, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True, encoding="utf-8"
        )
        self._begun: queue.Queue[_ForkedJob | None] = queue.Queue()
        self._running: dict[int, _ForkedJob] = {}
        threading.Thread(target=self._listen, name="ready process", daemon=True).start()

    def start(self, command: Sequence[str], log: Path) -> _ForkedJob:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps({"command": [*command], "log": str(log)}), file=self._process.stdin, flush=True)
        job = self._begun.get()
        if job is None:
            self._begun.put(None)
            raise NearkinError("the process that starts the runs has ended; the same command goes on")
        return job

    def close(self) -> None:
        """Jobs that still run are left to themselves."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            kind, pid, code = line.split()
            if kind == "began":
                self._running[int(pid)] = _ForkedJob(int(pid))
                self._begun.put(self._running[int(pid)])
            else:
                self._running.pop(int(pid)).end(int(code))
        for job in self._running.values():
            job.kill()
            job.end(-signal.SIGKILL)
        self._begun.put(None)


class _ForkedJob:
    """A job by its process number, which is not used again before its end was told."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._code = 0
        self._ended = threading.Event()

    def end(self, code: int) -> None:
        self._code = code
        self._ended.set()

    def poll(self) -> int | None:
        return self._code if self._ended.is_set() else None

    def terminate(self) -> None:
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        self._send(signal.SIGKILL)

    def wait(self) -> int:
        self._ended.wait()
        return self._code

    def _send(self, number: signal.Signals) -> None:
        if not self._ended.is_set():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, number)
