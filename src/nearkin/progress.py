"""What a person sees while a run goes on: a bar in a terminal, one line per evaluation when piped."""

from __future__ import annotations

import math
import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from nearkin.errors import require
from nearkin.run_folder import RunFolder
from nearkin.training import TrainingState

SHOWN = ("R@1", "MAP@R")


class ConsoleObserver:
    """Progress bar with loss, images per second and time left; evaluations are printed as they come."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._rate = 0.0
        self._before = time.monotonic()

    def __enter__(self) -> ConsoleObserver:
        if self.console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[note]}"),
                TimeRemainingColumn(),
                console=self.console,
                transient=True,
            )
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def decoding(self, done: int, total: int) -> None:
        """Progress of decoding the images."""
        if self._bar is None:
            return
        if self._task is None:
            self._task = self._bar.add_task("decoding", total=total, note="")
        self._bar.update(self._task, completed=done, total=total)
        if done >= total:
            self._bar.remove_task(self._task)
            self._task = None

    def on_step(self, state: TrainingState, loss: float, images: int) -> None:
        now = time.monotonic()
        rate = images / max(now - self._before, 1e-9)
        self._before = now
        self._rate = rate if self._rate == 0 else 0.9 * self._rate + 0.1 * rate
        if self._bar is None:
            return
        if self._task is None:
            self._task = self._bar.add_task("training", total=state.total_steps, note="", completed=state.step - 1)
        shown = "…" if math.isnan(loss) else f"{loss:.3f}"
        self._bar.update(self._task, completed=state.step, note=f"loss {shown}  {self._rate:,.0f} images/s")

    def on_evaluation(self, state: TrainingState, row: dict[str, Any]) -> None:
        parts = [f"epoch {row['epoch']:>5g}"]
        if row.get("loss") is not None:
            parts.append(f"loss {row['loss']:.3f}")
        parts += [f"{name} {100 * row[name]:.1f}" for name in SHOWN if name in row]
        if any(name in row for name in SHOWN):
            parts.append(f"({state.protocol.selects_on})")
        if state.best is not None and state.best["step"] == row["step"] and state.protocol.selects_on != "last":
            parts.append("best so far")
        self.console.print("  ".join(parts), highlight=False)
        self._before = time.monotonic()


class TensorBoardObserver:
    """The same numbers as TensorBoard events in the run folder (extra ``tensorboard``)."""

    def __init__(self, folder: RunFolder) -> None:
        require("tensorboard", "tensorboard")
        writer: Any = require("torch.utils.tensorboard", "tensorboard")
        self.writer = writer.SummaryWriter(str(folder.path / "tensorboard"))

    def on_step(self, state: TrainingState, loss: float, images: int) -> None:
        self.writer.add_scalar("loss", loss, state.step)

    def on_evaluation(self, state: TrainingState, row: dict[str, Any]) -> None:
        for name, value in row.items():
            if isinstance(value, float):
                self.writer.add_scalar(f"evaluation/{name}", value, state.step)
        self.writer.flush()


class Observers:
    """Several observers as one."""

    def __init__(self, *observers: Any) -> None:
        self.observers = observers

    def on_step(self, state: TrainingState, loss: float, images: int) -> None:
        for observer in self.observers:
            observer.on_step(state, loss, images)

    def on_evaluation(self, state: TrainingState, row: dict[str, Any]) -> None:
        for observer in self.observers:
            observer.on_evaluation(state, row)
