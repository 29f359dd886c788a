"""CCP's proof of concept (figure 2): ten digits in two dimensions, and the proxies at every turn of a sub-problem.

On MNIST, or without it on the ten digits of Glyphs, each drawn often enough to make a class of its own.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from nearkin.data.benchmarks.glyphs import FACES, GlyphClass, draw_glyphs
from nearkin.disk import write_atomically
from nearkin.evaluation.measurement import measure
from nearkin.numerics import normalise
from nearkin.report.figure_style import CLASS_COLOURS, RUN_COLOURS, new_figure, save_figure
from nearkin.runs.folder import RunFolder
from nearkin.training.methods.ccp import Ccp
from nearkin.training.state import Evaluation, Observer, TrainingState

DIGITS = "the ten digits of Glyphs are used instead"
FILE = "moments.npz"
_SHOWN = 1500


def write_digits(folder: str | Path, *, drawings: int = 8, size: int = 28, strength: float = 0.5) -> Path:
    """Draw the ten digits in every face of Glyphs, ``drawings`` times each, into a folder per digit.

    What is there already is left alone.
    """
    folder = Path(folder)
    classes = [GlyphClass(ord(digit), dict.fromkeys(FACES, ord(digit))) for digit in "0123456789"]
    for seed in range(drawings):
        last = folder / "9" / f"{FACES[-1]}-{seed}.png"
        if last.exists():
            continue
        table = draw_glyphs(classes, size=size, seed=seed, strength=strength)
        for pixels, digit, face in zip(table.images, table.columns["character"], table.columns["face"], strict=True):
            file = folder / str(digit) / f"{face}-{seed}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.asarray(pixels)).save(file)
    return folder


@dataclass(frozen=True)
class Moment:
    """The embedding space when a sub-problem has ended and the next has just begun."""

    step: int
    problem: int
    """How many sub-problems have ended; 0 for the untrained network, whose proxies mean nothing yet."""
    embeddings: NDArray[np.float32]
    """``[N, 2]``, of test images."""
    labels: NDArray[np.int64]
    ended: NDArray[np.float32]
    """``[C · K, 2]``: proxies as the sub-problem left them, one step before its end."""
    begun: NDArray[np.float32]
    """``[C · K, 2]``: those that the next begins with, embeddings of images that k-centre chose."""
    covering_radius: float
    inter_class_distance: float
    map_at_r: float

    @property
    def relative_radius(self) -> float:
        """The covering radius in units of the distance between classes: in the ball an embedding can shrink as a whole,
        which makes every radius smaller and nothing better."""
        return self.covering_radius / self.inter_class_distance


class MomentRecorder:
    """Watches a run with CCP and keeps a :class:`Moment` of every evaluation, for which the recipe times them."""

    def __init__(self, folder: RunFolder, then: Observer) -> None:
        self.folder = folder
        self.then = then
        self.moments: list[Moment] = []
        self._before: NDArray[np.float32] | None = None
        self._now: NDArray[np.float32] | None = None

    def on_step(self, state: TrainingState, loss: float, images: int) -> None:
        self._before, self._now = self._now, _proxies(state)
        self.then.on_step(state, loss, images)

    def on_evaluation(self, state: TrainingState, row: Evaluation) -> None:
        test = state.protocol.test
        if test is not None:
            embeddings = state.embed(test.query).float().cpu()
            labels = state.table.labels[test.query]
            now = _proxies(state) if self._now is None else self._now
            ended = now if self._before is None else self._before
            self.moments.append(
                Moment(
                    step=state.step,
                    problem=len(self.moments),
                    embeddings=embeddings.numpy()[:_SHOWN],
                    labels=labels[:_SHOWN],
                    ended=ended,
                    begun=now,
                    **measure(("covering_radius", "inter_class_distance"), embeddings, labels),
                    map_at_r=state.score(test)["MAP@R"],
                )
            )
            save_moments(self.moments, self.folder.path / FILE)
        self.then.on_evaluation(state, row)


def save_moments(moments: Sequence[Moment], file: Path) -> None:
    arrays: dict[str, Any] = {}
    for number, moment in enumerate(moments):
        arrays |= {f"{name}-{number}": value for name, value in vars(moment).items()}
    content = io.BytesIO()
    np.savez(content, count=len(moments), **arrays)
    write_atomically(file, content.getvalue())


def load_moments(file: Path) -> list[Moment]:
    with np.load(file, allow_pickle=False) as kept:
        return [
            Moment(**{each.name: _plain(kept[f"{each.name}-{number}"]) for each in fields(Moment)})
            for number in range(int(kept["count"]))
        ]


def draw_digits(moments: Sequence[Moment], file: Path, *, title: str = "") -> Path:
    """A panel for every turn: embeddings by class, squares where proxies ended, circles where the next begin.

    The last panel shows the covering radius falling, in units of the distance between classes.
    """
    columns = min(3, len(moments) + 1)
    rows = -(-(len(moments) + 1) // columns)
    figure = new_figure(3.3 * columns, 3.4 * rows + 0.8)
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for axis, moment in zip(axes, moments, strict=False):
        classes = np.unique(moment.labels)
        colours = [CLASS_COLOURS[number % len(CLASS_COLOURS)] for number in range(len(classes))]
        for colour, label in zip(colours, classes, strict=True):
            axis.scatter(*moment.embeddings[moment.labels == label].T, s=7, color=colour, linewidths=0, alpha=0.7)
        each = [colour for colour in colours for _ in range(len(moment.ended) // len(classes))]
        if moment.problem and moment is not moments[-1]:
            axis.scatter(*moment.begun.T, s=30, marker="o", facecolors="none", edgecolors=each, linewidths=1.2)
        if moment.problem:
            axis.scatter(*moment.ended.T, s=36, marker="s", facecolors=each, edgecolors="black", linewidths=1.1)
        what = f"end of problem {moment.problem}, step {moment.step}" if moment.problem else "untrained"
        radius = f"radius {moment.covering_radius:.3f}, {100 * moment.relative_radius:.0f} % of the distance"
        axis.set_title(f"{what}\n{radius}\nMAP@R {100 * moment.map_at_r:.1f}", fontsize=8.5)
        axis.set(xticks=[], yticks=[], aspect="equal", adjustable="datalim")
    falling = axes[len(moments)]
    steps = [moment.step for moment in moments]
    falling.plot(steps, [100 * moment.relative_radius for moment in moments], "o-", color=RUN_COLOURS[0])
    falling.set(xlabel="step", ylim=(0, None))
    falling.set_title("covering radius,\n% of the distance between classes", fontsize=8.5)
    falling.grid(alpha=0.3)
    for side in ("top", "right"):
        falling.spines[side].set_visible(False)
    for axis in axes[len(moments) + 1 :]:
        axis.set_visible(False)
    figure.suptitle(title, fontsize=11)
    figure.supxlabel("squares: proxies that a sub-problem ended with; circles: those the next begins with", fontsize=8)
    save_figure(figure, file, dpi=130)
    return file


def _proxies(state: TrainingState) -> NDArray[np.float32]:
    assert isinstance(state.method, Ccp), "the recipe's method is CCP"
    vectors = normalise(state.method.bank.vectors.detach(), state.encoder.normalisation)
    flat: NDArray[np.float32] = vectors.flatten(0, 1).float().cpu().numpy()
    return flat


def _plain(kept: NDArray[Any]) -> Any:
    """A number that was saved as an array without a dimension."""
    return kept if kept.ndim else kept.item()
