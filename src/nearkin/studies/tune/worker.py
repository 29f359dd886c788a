"""One trial of a search as a process of its own: ``python -m nearkin.studies.tune.worker FOLDER NUMBER``."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

from rich.console import Console

from nearkin.errors import NearkinError
from nearkin.studies.tune.plan import Plan
from nearkin.studies.tune.trials import train_trial


def main(folder: str, number: str) -> None:
    """Carry the trial out; an error goes to the output as the last thing that is said."""
    threading.Thread(target=stop_with_parent, args=(os.getppid(),), daemon=True).start()
    console = Console(width=200)
    try:
        train_trial(Plan.read(folder), Path(folder), int(number), console)
    except NearkinError as error:
        console.print(f"error: {error}", markup=False, highlight=False, soft_wrap=True)
        sys.exit(error.exit_code)


def stop_with_parent(parent: int, *, every: float = 1.0) -> None:
    """Ask this process to save itself and end, once the one that started it is gone, killed for instance."""
    while os.getppid() == parent:
        time.sleep(every)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main(*sys.argv[1:])
