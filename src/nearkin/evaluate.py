"""A trained run scored again, on its own data or on others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from nearkin.data.folder import Kinds
from nearkin.data.source import is_benchmark
from nearkin.data_report import Announce, describe_data
from nearkin.device import describe_hardware
from nearkin.errors import DataError
from nearkin.evaluation.protocol import EvaluationSet, Protocol
from nearkin.recipe import ProtocolSection
from nearkin.run import TrainedRun, load_run, open_data

Progress = Callable[[int, int], None]


def evaluate_run(
    path: str | Path,
    *,
    data: str | None = None,
    data_root: str | Path | None = None,
    kinds: Kinds | None = None,
    which: str = "best",
    device: str | None = None,
    progress: Progress | None = None,
    announce: Announce | None = None,
) -> dict[str, Any]:
    """Scores of a run's encoder on its own test classes, or on ``data``.

    Of ``data``, ``announce`` is told before they are scored what was understood; ``kinds`` says which of its folders
    are the classes (:func:`~nearkin.data.folder.read_folder`).
    """
    run = load_run(path, which=which, device=device)
    section = run.recipe.data
    if data is not None:
        section = replace(section, source=data, kinds=kinds or section.kinds)
    if data_root is not None:
        section = replace(section, root=str(data_root))
    opened = open_data(section, progress=progress)
    table = opened.table
    part = None
    if data is not None and not any(table.has_split(name) for name in ("test", "query")):
        protocol = Protocol(replace(run.recipe.protocol, test_share=0.0), table)
        part = EvaluationSet(np.arange(len(table), dtype=np.int64))
    else:
        protocol = Protocol(_with_test_split(run.recipe.protocol, other_data=data is not None), table)
        part = protocol.test
    if part is None:
        raise DataError(_nothing_to_score(run, table.name))
    if announce is not None and data is not None:
        announce(describe_data(opened, {"scored": part.rows}, compare=not is_benchmark(data)))
    embed = partial(run.embed, opened.images)
    scores = protocol.score(part, embed, distance=run.encoder.distance, final=True)
    rows = part.query
    return {
        "run": str(path),
        "checkpoint": which,
        "data": table.name,
        "images": len(rows),
        "classes": len(np.unique(table.labels[rows])),
        "hardware": describe_hardware(run.device),
        "note": _note(run, data, whole=len(part.rows) == len(table)),
        "scores": scores,
    }


def _note(run: TrainedRun, data: str | None, *, whole: bool) -> str | None:
    """A word of warning where images are scored that trained the encoder."""
    source, everything = run.recipe.data.source, run.recipe.protocol.name == "everything"
    if data is None or Path(data).expanduser().resolve() != Path(source).expanduser().resolve():
        return None
    if everything:
        return "it was trained on these very images, so this says nothing about new ones"
    return "among these are the images that it was trained on" if whole else None


def _with_test_split(section: ProtocolSection, *, other_data: bool) -> ProtocolSection:
    """The run's protocol; for other data than those that a final model was trained on, one that leaves their split."""
    return replace(section, name="conventional") if other_data and section.name == "everything" else section


def _nothing_to_score(run: TrainedRun, data: str) -> str:
    if run.recipe.protocol.name != "everything":
        return f"{data!r} has no test classes: give others with --data"
    whose = ""
    if run.folder.is_finished and (final_of := run.folder.scores().get("final_of")):
        test = final_of["scores"]["test"] or {}
        shown = ", ".join(f"{name} {100 * test[name]:.1f}" for name in ("R@1", "MAP@R") if name in test)
        whose = f" Its score is that of {final_of['run']}, on classes new to that: {shown}." if shown else ""
    return (
        f"{run.folder.path} was trained on every class of {data!r}, so there are none that it has never seen.{whose} "
        f"Score it on images of other classes with --data FOLDER"
    )
