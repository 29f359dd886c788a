"""What a person sees while a run goes on: a bar in a terminal, one line per evaluation when piped."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from nearkin.errors import require
from nearkin.training.state import EVALUATING, Evaluation, TrainingState
from nearkin.training.time_estimate import Estimate, Estimator, in_words

SHOWN = ("R@1", "MAP@R")
WORTH_SAYING, FAR_OFF = 20.0, 1.5
"""Seconds left from which on a run's time is said, and the factor from which on it is said anew."""


class ConsoleObserver:
    """A bar for whatever is going on, with the time left; evaluations and the time of the whole run as lines."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._bar: Progress | None = None
        self._shown: tuple[str, TaskID] | None = None
        self._rate = 0.0
        self._before = time.monotonic()
        self._estimator = Estimator()
        self._announced: float | None = None

    def __enter__(self) -> ConsoleObserver:
        if self.console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.fields[note]}"),
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
        self._show("decoding", done, total, f"{done:,}/{total:,}")

    def doing(self, what: str) -> None:
        """Something without a count that takes a while."""
        self._show(what, 0, None)

    def on_scoring(self, what: str, done: int, total: int) -> None:
        if done == 0 and what != EVALUATING and self._bar is None:  # an evaluation gets a line of its own
            self.console.print(f"{what}: {total:,} images", highlight=False, soft_wrap=True)
        # As long as nothing is counted the bar moves to and fro: a batch of a few hundred images takes its time.
        self._show(what, done, total if done else None, f"{done:,}/{total:,} images")
        self._before = time.monotonic()

    def on_step(self, state: TrainingState, loss: float, images: int) -> None:
        now = time.monotonic()
        rate = images / max(now - self._before, 1e-9)
        self._before = now
        self._rate = rate if self._rate == 0 else 0.9 * self._rate + 0.1 * rate
        estimate = self._estimator.after_step(state)
        if estimate is not None and self._estimator.is_settled:
            self._announce(estimate)
        shown = "…" if math.isnan(loss) else f"{loss:.3f}"
        note = f"step {state.step:,}/{state.total_steps:,}  loss {shown}  {self._rate:,.0f} images/s"
        if estimate is not None:
            note += f"  about {in_words(estimate.left)} left"
        self._show("training", state.step, state.total_steps, note)

    def on_evaluation(self, state: TrainingState, row: Evaluation) -> None:
        parts = [f"epoch {row['epoch']:>5g}"]
        if row.get("loss") is not None:
            parts.append(f"loss {row['loss']:.3f}")
        parts += [f"{name} {100 * row[name]:.1f}" for name in SHOWN if name in row]
        if any(name in row for name in SHOWN):
            parts.append(f"({state.protocol.selects_on})")
            parts += [] if row["step"] else [f"untrained {state.baseline}"]
        if state.best is not None and state.best["step"] == row["step"] and state.protocol.selects_on != "last":
            parts.append(
                "best of training so far, below the untrained backbone"
                if state.is_below_baseline(row)
                else "best so far"
            )
        self.console.print("  ".join(parts), highlight=False, soft_wrap=True)
        self._before = time.monotonic()

    def _announce(self, estimate: Estimate) -> None:
        """Say how long it takes, once for a run that takes a while, and again if that turns out to be far off."""
        off = estimate.total / self._announced if self._announced else math.inf
        if estimate.left >= WORTH_SAYING and not 1 / FAR_OFF < off < FAR_OFF:
            self.console.print(str(estimate), highlight=False, soft_wrap=True)
            self._announced = estimate.total

    def _show(self, what: str, done: int, total: int | None, note: str = "") -> None:
        if self._bar is None:
            return
        if self._shown is not None and self._shown[0] != what:
            self._bar.remove_task(self._shown[1])
            self._shown = None
        if self._shown is None:
            self._shown = what, self._bar.add_task(what, total=total, note=note)
        self._bar.update(self._shown[1], completed=done, total=total, note=note)


class TensorBoardObserver:
    """The same numbers as TensorBoard events in the run folder (extra ``tensorboard``)."""

    def __init__(self, folder: Path) -> None:
        require("tensorboard", "tensorboard")
        writer: Any = require("torch.utils.tensorboard", "tensorboard")
        self.writer = writer.SummaryWriter(str(folder / "tensorboard"))

    def on_step(self, state: TrainingState, loss: float, images: int) -> None:
        self.writer.add_scalar("loss", loss, state.step)

    def on_evaluation(self, state: TrainingState, row: Evaluation) -> None:
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

    def on_evaluation(self, state: TrainingState, row: Evaluation) -> None:
        for observer in self.observers:
            observer.on_evaluation(state, row)

    def on_scoring(self, what: str, done: int, total: int) -> None:
        for observer in self.observers:
            if hasattr(observer, "on_scoring"):
                observer.on_scoring(what, done, total)
