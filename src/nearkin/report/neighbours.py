"""A picture of what an encoder finds: queries of classes never seen, and their nearest neighbours."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from nearkin.data.cache import OpenedImages
from nearkin.encoders import Encoder
from nearkin.evaluation.neighbours import nearest
from nearkin.report.opened_run import whole_classes
from nearkin.runs.data import open_run_data
from nearkin.runs.folder import RunFolder, write_atomically
from nearkin.runs.run import load_run
from nearkin.training.build import encoder_from
from nearkin.training.embedding import embed_images

RIGHT, WRONG, PLAIN, MARGIN = "#1a9850", "#d73027", "#444444", "#f2f2f2"
GALLERY_LIMIT = 3000
"""A picture need not rank a whole large gallery; beyond this many images some whole classes stand for it."""


def draw_neighbours(folder: RunFolder, *, queries: int = 6, neighbours: int = 8, seed: int = 0) -> Path | None:
    """Write ``neighbours.png`` into a run folder: each query's neighbours before and after training.

    Returns the file, or None when the run has no test classes.
    """
    trained = load_run(folder.path)
    recipe = trained.recipe
    own = open_run_data(folder, recipe, scored=("test", "query", "gallery"))
    data, protocol = own.images, own.protocol
    test = protocol.test
    if test is None:
        return None
    rng = np.random.Generator(np.random.Philox(seed))
    pool = test.query if test.gallery is None else np.union1d(test.query, test.gallery)
    pool = _whole_classes(pool, data.table.labels, rng)
    torch.manual_seed(recipe.training.seed)  # as when the run was built, for a backbone that begins as random numbers
    encoders = {
        "before training": encoder_from(recipe.encoder).without_head().to(trained.device),
        "after training": trained.encoder,
    }
    labels = data.table.labels[pool]
    places = choose_queries(labels, queries, rng)
    shown = min(neighbours, findable(labels, places))

    def found(encoder: Encoder) -> NDArray[np.int64]:
        embeddings = embed_images(encoder, data.images, trained.transform, rows=pool, device=trained.device)
        order, _ = nearest(embeddings, k=shown, distance=encoder.distance)
        indices: NDArray[np.int64] = order.cpu().numpy()[places]
        return indices

    title = f"Nearest neighbours among {protocol.test_classes}\n(green: same class, red: another)"
    figure = _figure(data, pool, places, labels, {name: found(encoder) for name, encoder in encoders.items()}, title)
    file = folder.path / "neighbours.png"
    save_figure(figure, file)
    return file


def save_figure(figure: Any, file: Path, *, dpi: int = 110) -> None:
    """Write a figure in the format that the file's name ends in; the same figure always gives the same bytes."""
    kind = file.suffix.removeprefix(".")
    metadata = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(kind)
    content = io.BytesIO()
    with warnings.catch_warnings():
        # A class name may hold characters that the figure's font lacks; a box in a caption is no reason for noise.
        warnings.filterwarnings("ignore", message=".*missing from font.*")
        figure.savefig(content, format=kind, dpi=dpi, facecolor="white", metadata=metadata)
    write_atomically(file, content.getvalue())


def _whole_classes(rows: NDArray[np.int64], labels: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    return whole_classes(rows, labels, rng, limit=GALLERY_LIMIT)


def choose_queries(labels: NDArray[np.int64], count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """One query from each of ``count`` classes that have something to be found."""
    classes, sizes = np.unique(labels, return_counts=True)
    classes = classes[sizes >= 2]
    chosen = rng.choice(classes, min(count, len(classes)), replace=False)
    return np.array([rng.choice(np.flatnonzero(labels == label)) for label in np.sort(chosen)], dtype=np.int64)


def findable(labels: NDArray[np.int64], places: NDArray[np.int64]) -> int:
    """How many neighbours to show: a class of five has four to find, and a fifth would be wrong in any case."""
    return max(1, min(int((labels == labels[place]).sum()) - 1 for place in places.tolist()))


def _figure(
    data: OpenedImages,
    pool: NDArray[np.int64],
    places: NDArray[np.int64],
    labels: NDArray[np.int64],
    found: dict[str, NDArray[np.int64]],
    title: str,
) -> Any:
    from matplotlib.figure import Figure

    columns = 1 + next(iter(found.values())).shape[1]
    rows = len(places) * len(found)
    figure = Figure(figsize=(1.05 * columns + 1.6, 1.18 * rows + 0.9), layout="constrained")
    figure.suptitle(title)
    grid = figure.subplots(rows, columns, squeeze=False)
    for q, place in enumerate(places.tolist()):
        name = data.table.class_names[int(labels[place])]
        for r, (moment, order) in enumerate(found.items()):
            axes = grid[len(found) * q + r]
            show_image(axes[0], data.images[int(pool[place])], PLAIN)
            axes[0].set_ylabel(moment.replace(" ", "\n"), rotation=0, ha="right", va="center", fontsize=8)
            if r == 0:
                axes[0].set_title(shorten(name), fontsize=8)
            for axis, neighbour in zip(axes[1:], order[q].tolist(), strict=True):
                same = labels[neighbour] == labels[place]
                show_image(axis, data.images[int(pool[neighbour])], RIGHT if same else WRONG)
                if not same:
                    axis.set_xlabel(shorten(data.table.class_names[int(labels[neighbour])]), fontsize=6)
    return figure


def show_image(axis: Any, image: NDArray[np.uint8], colour: str) -> None:
    """An image in a square frame, so that high and wide ones take the same room."""
    height, width = image.shape[:2]
    half = max(height, width) / 2
    axis.imshow(image, interpolation="antialiased")
    axis.set_facecolor(MARGIN)
    axis.set_xlim(width / 2 - half - 0.5, width / 2 + half - 0.5)
    axis.set_ylim(height / 2 + half - 0.5, height / 2 - half - 0.5)
    axis.set_xticks([])
    axis.set_yticks([])
    for side in axis.spines.values():
        side.set_visible(True)
        side.set_color(colour)
        side.set_linewidth(2.5)


def shorten(name: str, length: int = 18) -> str:
    """A name short enough for a caption, and safe there: matplotlib reads ``$`` as the start of a formula.

    >>> shorten("a very long name of a class"), shorten("5 $")
    ('a very long name …', '5 \\\\$')
    """
    short = name if len(name) <= length else name[: length - 1] + "…"
    return short.replace("$", r"\$")
