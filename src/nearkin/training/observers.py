"""What a person sees while a run trains: a bar in a terminal, one line per evaluation when piped."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import timedelta

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from nearkin.training.state import EVALUATING, Evaluation, Observer, TrainingState

SHOWN = ("R@1", "MAP@R")
ESTIMATE_STEPS = 5
"""Steps from which the time of a run is estimated, without the first, which waits for the first images."""


def seconds_left(state: TrainingState, step_seconds: float) -> float:
    """The estimated time of the rest of a run, whose steps and evaluations take as long as those so far."""
    evaluations = math.ceil((state.total_steps - state.step) / state.evaluation_interval) + 1
    evaluation_seconds = state.time.by["evaluations"] / max(1, len(state.history))
    return (state.total_steps - state.step) * step_seconds + evaluations * evaluation_seconds


def hours_minutes_seconds(seconds: float) -> str:
    """
    >>> [hours_minutes_seconds(seconds) for seconds in (9.2, 5400, 200_000)]
    ['0:00:09', '1:30:00', '2 days, 7:33:20']
    """
    return str(timedelta(seconds=round(seconds)))


class ConsoleObserver(Observer):
    """A bar for the current work with the time left, and a line for each evaluation and the estimated time."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.others: list[Observer] = []
        """Observers that follow the run as well, and are closed at its end."""
        self._bar: Progress | None = None
        self._shown: tuple[str, TaskID] | None = None
        self._first: tuple[int, float] | None = None
        self._announced = False

    def __enter__(self) -> ConsoleObserver:
        if self.console.is_terminal:
            columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[note]}")
            self._bar = Progress(*columns, console=self.console, transient=True)
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
        for other in self.others:
            other.close(failed=kind is not None)

    def on_start(self, state: TrainingState) -> None:
        for other in self.others:
            other.on_start(state)

    def decoding(self, done: int, total: int) -> None:
        self._show("decoding", done, total, f"{done:,}/{total:,}")

    def doing(self, what: str) -> None:
        self._show(what, 0, None)

    def on_scoring(self, what: str, done: int, total: int) -> None:
        if done == 0 and what != EVALUATING and self._bar is None:  # an evaluation gets a line of its own
            self.console.print(f"{what}: {total:,} images", highlight=False, soft_wrap=True)
        # Without a total the bar moves to and fro, as the first batch of a few hundred images takes its time.
        self._show(what, done, total if done else None, f"{done:,}/{total:,} images")

    def on_step(self, state: TrainingState, loss: float, images: int) -> None:
        note = f"step {state.step:,}/{state.total_steps:,}  loss {'…' if math.isnan(loss) else f'{loss:.3f}'}"
        if self._first is None:
            self._first = state.step, state.time.by["steps"]
        elif steps := state.step - self._first[0]:
            step_seconds = (state.time.by["steps"] - self._first[1]) / steps
            left = seconds_left(state, step_seconds)
            note += f"  {images / max(step_seconds, 1e-9):,.0f} images/s  {hours_minutes_seconds(left)} left"
            if steps >= ESTIMATE_STEPS and not self._announced and left > 20:
                total = hours_minutes_seconds(state.time.seconds + left)
                self.console.print(f"about {total} in all, by the first steps", highlight=False, soft_wrap=True)
            self._announced = self._announced or steps >= ESTIMATE_STEPS
        self._show("training", state.step, state.total_steps, note)
        for other in self.others:
            other.on_step(state, loss, images)

    def on_evaluation(self, state: TrainingState, row: Evaluation) -> None:
        parts = [f"epoch {row['epoch']:>5g}"]
        if row.get("loss") is not None:
            parts.append(f"loss {row['loss']:.3f}")
        parts += [f"{name} {100 * row[name]:.1f}" for name in SHOWN if name in row]
        if any(name in row for name in SHOWN):
            parts.append(f"({state.protocol.selects_on})")
            parts += [] if row["step"] else ["untrained backbone"]
        if state.best is not None and state.best["step"] == row["step"] and state.protocol.selects_on != "last":
            below = state.is_below_baseline(row)
            parts.append("best of training so far, below the untrained backbone" if below else "best so far")
        self.console.print("  ".join(parts), highlight=False, soft_wrap=True)
        for other in self.others:
            other.on_evaluation(state, row)

    def on_test(self, state: TrainingState, scores: Mapping[str, float]) -> None:
        for other in self.others:
            other.on_test(state, scores)

    def _show(self, what: str, done: int, total: int | None, note: str = "") -> None:
        if self._bar is None:
            return
        if self._shown is not None and self._shown[0] != what:
            self._bar.remove_task(self._shown[1])
            self._shown = None
        if self._shown is None:
            self._shown = what, self._bar.add_task(what, total=total, note=note)
        self._bar.update(self._shown[1], completed=done, total=total, note=note)
