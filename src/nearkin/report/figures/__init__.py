"""Pictures of one run or of several: each is a file here, whose name is the picture's and whose ``draw`` draws it."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from nearkin.catalogue import PLOT_FORMATS, plot_names
from nearkin.disk import check_writable, make_folder
from nearkin.errors import DataError, NearkinError, RecipeError, did_you_mean
from nearkin.report.figure_style import STYLE, save_figure
from nearkin.report.figures._maps import WITH_MAPS, without_tsne
from nearkin.report.figures._runs import Drawing
from nearkin.report.opened_run import CLASSES_BY, OpenedRun, ViewOptions, open_runs
from nearkin.runs.data import Progress
from nearkin.runs.folder import RunFolder

__all__ = ["WITH_MAPS", "NotDrawn", "ViewOptions", "Written", "draw_plots", "without_tsne"]


@dataclass(frozen=True)
class Written:
    """A picture that was written to ``file``."""

    name: str
    file: Path


@dataclass(frozen=True)
class NotDrawn:
    """A picture that could not be drawn, and why; ``run`` where that holds for one run of several."""

    name: str
    reason: str
    run: OpenedRun | None = None


def draw_plots(
    paths: Sequence[str | Path],
    *,
    only: Sequence[str] = (),
    output: Path | None = None,
    file_format: str = "png",
    view: ViewOptions | None = None,
    progress: Progress | None = None,
) -> Iterator[Written | NotDrawn]:
    """Draw what there is to see in the runs at ``paths``, each picture as soon as the one before is written.

    Pictures of one run go to ``RUN/plots``, those of several to ``output``, where the ones that show a single run carry
    its name. ``only`` takes names of pictures, and what comes before their hyphen for several. What cannot be drawn
    comes back as :class:`NotDrawn` with the reason. Bad options and runs that do not belong together raise at once,
    before anything is drawn.
    """
    kinds = {name: {name, name.partition("-")[0]} for name in plot_names()}
    for name in only:
        if not any(name in named for named in kinds.values()):
            raise RecipeError(f"unknown picture {name!r}: {did_you_mean(name, kinds)}")
    if file_format not in PLOT_FORMATS:
        raise RecipeError(f"the format must be one of {', '.join(PLOT_FORMATS)}, got {file_format!r}")
    view = view or ViewOptions()
    if view.checkpoint not in ("best", "last"):
        raise RecipeError(f"the checkpoint must be 'best' or 'last', got {view.checkpoint!r}")
    if view.classes < 2:
        raise RecipeError(f"a map needs at least 2 classes, got {view.classes}")
    if view.seed < 0:
        raise RecipeError(f"the seed must be 0 or more, got {view.seed}")
    if view.classes_by not in CLASSES_BY:
        raise RecipeError(
            f"classes cannot be compared by {view.classes_by!r}: {did_you_mean(view.classes_by, CLASSES_BY)}"
        )
    distinct = list({Path(path).expanduser().resolve(): Path(path) for path in reversed(paths)}.values())[::-1]
    if len(distinct) > 1 and output is None:
        raise RecipeError("several runs in one picture belong to none of them: say where to write with --output")
    for path in distinct:
        below = sorted(file.parent for file in path.glob("*/*/recipe.yaml")) if path.is_dir() else []
        if below and not RunFolder(path).is_begun:  # all its runs in one picture would be too many to tell apart
            raise DataError(
                f"{path} holds {len(below)} runs and is none itself: name those to draw, such as {below[0]}; "
                f"nearkin report {path} shows them all"
            )
    runs = open_runs(distinct, view, progress=progress)
    folder = output or runs[0].folder.path / "plots"
    if folder.exists() and not folder.is_dir():
        raise RecipeError(f"{folder} is a file: give a folder with --output")
    check_writable(folder)
    chosen = [name for name, named in kinds.items() if not only or named & set(only)]
    return _write(runs, chosen, folder, file_format)


def _write(
    runs: Sequence[OpenedRun], chosen: Sequence[str], folder: Path, file_format: str
) -> Iterator[Written | NotDrawn]:
    import matplotlib

    make_folder(folder)
    for name in chosen:
        drawing = _drawing(name, runs)
        while True:
            # Around each picture and not around the loop: between two of them the caller has its own settings.
            with matplotlib.rc_context(STYLE):
                run, figure = next(drawing, (None, None))
                if figure is None:
                    break
                file = folder / f"{name}{_suffix(run, runs)}.{file_format}"
                if not isinstance(figure, NearkinError):
                    save_figure(figure, file, dpi=150)
            yield NotDrawn(name, str(figure), run) if isinstance(figure, NearkinError) else Written(name, file)


def _drawing(name: str, runs: Sequence[OpenedRun]) -> Drawing:
    """The picture's figures; what stops it as a whole is a reason, too."""
    try:
        yield from importlib.import_module(f"{__name__}.{name.replace('-', '_')}").draw(runs)
    except NearkinError as error:
        yield None, error


def _suffix(run: OpenedRun | None, runs: Sequence[OpenedRun]) -> str:
    """What tells the pictures of single runs apart where there are several."""
    if run is None or len(runs) == 1:
        return ""
    names = [other.name for other in runs]
    return f"-{run.name}" if names.count(run.name) == 1 else f"-{run.name}-{runs.index(run) + 1}"
