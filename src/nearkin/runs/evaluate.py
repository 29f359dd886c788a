"""A trained run scored again, on its own data or on others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from nearkin import ranks
from nearkin.data.cache import OpenedImages
from nearkin.data.folder import ClassFolders
from nearkin.data.source import is_benchmark
from nearkin.errors import DataError
from nearkin.evaluation.protocol import EvaluationSet, Protocol
from nearkin.evaluation.reranking import Rerank
from nearkin.recipe import ProtocolSection
from nearkin.runs.data import SCORED, Progress, open_data, open_run_data
from nearkin.runs.data_report import Announce, describe_data
from nearkin.runs.folder import RunFolder
from nearkin.runs.scores import Evaluated
from nearkin.runs.test_time import AtTestTime
from nearkin.runs.trained import TrainedRun, load_run
from nearkin.training.build import data_of
from nearkin.training.device import describe_hardware


@ranks.joined()
def evaluate_run(
    path: str | Path,
    *,
    data: str | None = None,
    data_root: str | Path | None = None,
    class_folders: ClassFolders | None = None,
    which: str = "best",
    device: str | None = None,
    flip: bool | None = None,
    eval_size: int | None = None,
    also: Sequence[str | Path] = (),
    rerank: Rerank | None = None,
    progress: Progress | None = None,
    announce: Announce | None = None,
) -> Evaluated:
    """Scores of a run's encoder on its own test classes, or on ``data``.

    The test classes are the images that were kept for testing when the run began (``split.csv``), as far as they are
    still there; what came later is left out. Where images or classes of ``data`` were trained on, ``note`` says so and
    ``trained_on`` counts them; ``announce`` is told before they are scored what was understood of them, and
    ``class_folders`` says which of their folders are the classes (:func:`~nearkin.data.folder.read_folder`).

    What else may be done with a trained encoder, all of which ``conditions`` and ``test_time`` name: ``flip`` and
    ``eval_size`` take the place of the run's own (recipe keys of the protocol); embeddings are those of the run and of
    the runs ``also``, concatenated; ``rerank`` orders rankings again and needs all test images at once
    (:class:`~nearkin.evaluation.reranking.Rerank`).
    """
    runs = [load_run(each, which=which, device=device, flip=flip, eval_size=eval_size) for each in (path, *also)]
    at_test_time = AtTestTime(runs, rerank)
    run, *others = runs
    if data is None:
        own = ranks.first_on_each_machine(
            lambda: open_run_data(run.folder, run.recipe, data_root=data_root, progress=progress, scored=SCORED[1:])
        )
        opened, protocol = own.images, own.protocol
        part = protocol.test
    else:
        section = replace(
            data_of(run.recipe), source=data, class_folders=class_folders or run.recipe.data.class_folders
        )
        section = section if data_root is None else replace(section, root=str(data_root))
        opened = ranks.first_on_each_machine(lambda: open_data(section, progress=progress))
        if any(opened.table.has_split(name) for name in ("test", "query")):
            protocol = Protocol(_with_test_split(run.recipe.protocol), opened.table)
            part = protocol.test
        else:
            protocol = Protocol(replace(run.recipe.protocol, test_share=0.0), opened.table)
            part = EvaluationSet(np.arange(len(opened.table), dtype=np.int64))
    table = opened.table
    if part is None:
        raise DataError(_nothing_to_score(run, table.name))
    trained_on = None
    if data is not None:
        if announce is not None:
            announce(describe_data(opened, {"scored": part.rows}, compare=not is_benchmark(data)))
        trained_on = _trained_on(run.folder, opened, part)
    scores = protocol.score(
        part,
        lambda rows: at_test_time.embed(opened.images, rows),
        distance=run.encoder.distance,
        final=True,
        rerank=rerank,
    )
    scores = ranks.from_first(lambda: scores)
    rows = part.query
    notes = [] if data is None else [_note(run.folder, trained_on, opened, part)]
    # The others may have been trained on what the first was tested on.
    for other in others:
        said = _note(other.folder, _trained_on(other.folder, opened, part), opened, part)
        notes += [said and f"of {other.folder.path}: {said}"]
    return Evaluated(
        run=str(path),
        checkpoint=which,
        data=table.name,
        images=len(rows),
        classes=len(np.unique(table.labels[rows])),
        trained_on=trained_on,
        hardware=describe_hardware(run.device),
        note="; ".join(filter(None, notes)) or None,
        conditions=at_test_time.conditions(),
        test_time=at_test_time.record(),
        scores=scores,
    )


def _note(
    folder: RunFolder, trained_on: Mapping[str, int] | None, opened: OpenedImages, part: EvaluationSet
) -> str | None:
    """A word of warning where images or classes are scored that trained the encoder."""
    if trained_on is None:
        return (
            f"{folder.path} is of an earlier version, which did not keep what it was trained on; whether these "
            f"images and classes are among that is not known"
        )
    rows = np.unique(part.rows)
    images, classes = len(rows), len(np.unique(opened.table.labels[rows]))
    if trained_on["images"] == images:
        return "it was trained on these very images, so this says nothing about new ones"
    if not trained_on["classes"]:
        return None
    return (
        f"it was trained on {trained_on['images']:,} of these {images:,} images, and on {trained_on['classes']:,} of "
        f"these {classes:,} classes by their images or names, so this is no score on classes never seen"
    )


def _with_test_split(section: ProtocolSection) -> ProtocolSection:
    """The run's protocol for other data; for a final model, which has no test classes, one that leaves their split."""
    return replace(section, name="conventional") if section.name == "everything" else section


def _nothing_to_score(run: TrainedRun, data: str) -> str:
    if run.recipe.protocol.name != "everything":
        return f"{data!r} has no test classes: give others with --data"
    whose = ""
    if run.folder.is_finished and (final_of := run.folder.scores().final_of):
        test = final_of.scores.test or {}
        shown = ", ".join(f"{name} {100 * test[name]:.1f}" for name in ("R@1", "MAP@R") if name in test)
        whose = f" Its score is that of {final_of.run}, on classes new to that: {shown}." if shown else ""
    return (
        f"{run.folder.path} was trained on every class of {data!r}, so there are none that it has never seen.{whose} "
        f"Score it on images of other classes with --data FOLDER"
    )


def _trained_on(folder: RunFolder, opened: OpenedImages, part: EvaluationSet) -> dict[str, int] | None:
    """How many of the images and classes to be scored the run has seen in training; None where that is not known."""
    stored = folder.stored_split
    if stored is None:
        return None
    table, rows = opened.table, np.unique(part.rows)
    images = [row for row in rows.tolist() if opened.digests[row] in stored.trained]
    classes = {
        label for label in np.unique(table.labels[rows]).tolist() if table.class_names[label] in stored.trained_classes
    }
    return {"images": len(images), "classes": len(classes | set(table.labels[images].tolist()))}
