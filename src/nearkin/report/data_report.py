"""A summary of a run's data, as text for a terminal or a log."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from nearkin.data.images import NOT_IMAGES
from nearkin.data.table import LeftOut
from nearkin.evaluation.confidence import FEWEST_CLASSES, FEWEST_IMAGES
from nearkin.report.table import counted
from nearkin.runs.data import NEW_IMAGES, TRAINING, UNUSED, DataReport, Repeated, RepeatedPictures

_MOST_LINES = 8
_SCORED = ("test", "queries", "gallery")
_ROLES = {
    NEW_IMAGES: "of classes that train; scored, and confidences are learned from them",
    "validation": "chooses the epoch",
    UNUSED: "by the protocol of this run",
}


def data_report_text(report: DataReport, *, overview: bool = True) -> Text:
    """The whole report; without ``overview`` only problems."""
    text = Text()
    if overview:
        _overview(text, report)
    text.append_text(left_out_text(report.left_out, report.unreadable))
    if report.repeated is not None:
        _warn(text, report.repeated)
    text.rstrip()
    return text


def left_out_text(left_out: Sequence[LeftOut], unreadable: Sequence[str] = ()) -> Text:
    """Files that were not read, by type; empty where all were."""
    photos_first = sorted(left_out, key=lambda files: not files.is_photo)
    lines = [str(files) for files in photos_first if files.reason != NOT_IMAGES]
    if not_images := [files for files in left_out if files.reason == NOT_IMAGES]:
        listed = ", ".join(f"{files.count:,} {files.what}" for files in not_images[:_MOST_LINES])
        more = f", {len(not_images) - _MOST_LINES} more file types" if len(not_images) > _MOST_LINES else ""
        lines.append(f"{listed}{more}: {NOT_IMAGES}")
    lines += [f"cannot be read: {file}" for file in unreadable[:_MOST_LINES]]
    if len(unreadable) > _MOST_LINES:
        lines.append(f"… and {len(unreadable) - _MOST_LINES:,} more that cannot be read")
    if not lines:
        return Text()
    return Text.assemble(("left out:\n", "yellow"), "".join(f"  {line}\n" for line in lines))


def _overview(text: Text, report: DataReport) -> None:
    (small, fewest), (large, most) = report.smallest, report.largest
    sizes = f"{most:,} each" if fewest == most else f"from {fewest:,} ({small}) to {most:,} ({large}) each"
    text.append(f"{report.name}: {counted(report.images, 'image')} of {counted(report.classes, 'class')}, {sizes}\n")
    if report.single and report.classes > 1:
        text.append(f"  {counted(report.single, 'class')} with a single image, which has no other to find\n")
    trains = {part.name: part.classes for part in report.parts}.get(TRAINING, 0)
    for part in report.parts:
        role = _ROLES.get(part.name, "")
        if part.name in _SCORED and trains:
            role = "classes never seen in training" if part.unseen else "classes that also train"
        if part.name == NEW_IMAGES and (part.images < FEWEST_IMAGES or trains < FEWEST_CLASSES):
            role = f"too few to be scored: it takes {FEWEST_IMAGES} images and {FEWEST_CLASSES} classes"
        amount = f"{counted(part.classes, 'class'):>13}  {counted(part.images, 'image'):>14}"
        text.append(f"  {part.name:<10}  {amount}  {role}".rstrip() + "\n")
    if report.kept_in is not None:
        text.append(f"  decoded images are kept in {report.kept_in} (nearkin cache shows and clears it)\n", style="dim")


def _warn(text: Text, repeated: RepeatedPictures) -> None:
    def add(repeats: Repeated, severity: str, what: str) -> None:
        if not repeats.count:
            return
        text.append(f"{severity}: ", style="bold yellow" if severity == "warning" else "yellow")
        text.append(f"{counted(repeats.count, 'image')} {what}\n")
        for (one, part), (other, other_part) in repeats.examples:
            first = f"{one!r} ({part})" if part != other_part else f"{one!r}"
            text.append(f"  {first} = {other!r} ({other_part})\n")
        if repeats.count > len(repeats.examples):
            text.append(f"  … and {repeats.count - len(repeats.examples):,} more\n")

    add(repeated.leaks, "warning", "both trained on and scored, which makes the scores better than they are:")
    add(repeated.two_classes, "warning", "in two classes, of which one must be wrong:")
    add(repeated.copies, "note", "twice in a class that is scored, where each finds its copy:")
    if not repeated.complete:
        text.append("note: too many images, or too many that look alike, to search all for images that occur twice\n")
