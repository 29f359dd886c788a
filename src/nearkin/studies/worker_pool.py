"""Several jobs at a time, each a process of its own, to fill a GPU that one run leaves idle."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from nearkin.errors import InterruptedRunError
from nearkin.training.loop import StopRequest

LOG = "output.log"
PYTHON = (sys.executable,)
POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Job:
    """A command that saves its work when it is asked to stop, and can be started again."""

    label: str
    command: Sequence[str]
    """What follows ``python``."""
    log: Path
    is_done: Callable[[], bool]
    on_end: Callable[[int, str], None]
    """Called with the exit code and the last message, unless the job was stopped before it was done."""


def run_in_parallel(jobs: Iterator[Job], *, at_once: int, total: int, console: Console) -> None:
    """Run ``jobs``, ``total`` in all, ``at_once`` at a time; the next is asked for when there is room for it.

    On Ctrl-C or SIGTERM every running job saves itself, and :class:`InterruptedRunError` is raised.
    """
    # Each job would otherwise start as many threads as there are cores, and they would wait for each other.
    environment = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // at_once)), **os.environ}
    running: list[tuple[Job, subprocess.Popen[bytes]]] = []
    started, more, terminated, cut_short = 0, True, False, False
    with StopRequest() as stop:
        try:
            while running or (more and not stop.requested):
                while more and len(running) < at_once and not stop.requested:
                    if (job := next(jobs, None)) is None:
                        more = False
                        break
                    started += 1
                    console.print(f"starts: {job.label} (output in {job.log})", highlight=False, soft_wrap=True)
                    running.append((job, _start(job, environment)))
                if stop.requested and not terminated:
                    terminated = True
                    for _, process in running:
                        process.terminate()
                for job, process in list(running):
                    if (code := process.poll()) is None:
                        continue
                    running.remove((job, process))
                    if job.is_done() or not stop.requested:  # a job that was asked to stop has not failed
                        killed = f"killed by signal {-code}; its last message: " if code < 0 else ""
                        job.on_end(code, killed + last_log_line(job.log))
                    else:
                        cut_short = True
                time.sleep(POLL_SECONDS)
        finally:
            for _, process in running:
                process.kill()
                process.wait()
    if stop.requested and (cut_short or started < total):
        raise InterruptedRunError("interrupted; the same command resumes")


def _start(job: Job, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    job.log.parent.mkdir(parents=True, exist_ok=True)
    command, null, err = [*PYTHON, *job.command], subprocess.DEVNULL, subprocess.STDOUT
    with open(job.log, "wb") as output:
        return subprocess.Popen(command, stdin=null, stdout=output, stderr=err, env=environment)


def last_log_line(log: Path) -> str:
    """The message behind ``error:`` in a job's output, or the last line."""
    text = log.read_text(encoding="utf-8", errors="replace").strip() if log.exists() else ""
    _, marked, message = f"\n{text}".rpartition("\nerror: ")
    last = text.splitlines()[-1] if text else f"no output (see {log})"
    return message.strip() if marked else last
