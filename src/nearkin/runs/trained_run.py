"""A run's encoder, loaded from its folder to embed images or whole folders of files as it was scored."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nearkin import ranks
from nearkin.data.cache import Images, Progress
from nearkin.data.folder import printable
from nearkin.data.image_inputs import ImageInput, as_images
from nearkin.data.images import UnreadableImageError
from nearkin.data.source import collect_images
from nearkin.data.table import ImageTable, LeftOut
from nearkin.data.transforms import Transform
from nearkin.disk import check_room, check_writable, write_atomically
from nearkin.encoders import Encoder
from nearkin.errors import DataError, RecipeError, notice
from nearkin.numerics import normalise
from nearkin.recipe import Recipe
from nearkin.runs.data import open_data
from nearkin.runs.folder import RunFolder
from nearkin.runs.model import Model
from nearkin.training import checkpoint
from nearkin.training.build import data_of, encoder_from, eval_transform_of
from nearkin.training.checkpoint import read_checkpoint
from nearkin.training.device import autocast_dtype, float32_products, pick_device
from nearkin.training.embedding import embed_images
from nearkin.training.recipe_check import load_recipe


@dataclass(frozen=True)
class TrainedRun:
    """A run's encoder, ready to embed images."""

    folder: RunFolder
    recipe: Recipe
    encoder: Encoder
    transform: Transform
    device: torch.device
    dtype: torch.dtype | None

    def embed(
        self,
        images: Images | ImageInput | Iterable[ImageInput],
        rows: NDArray[np.int64] | None = None,
        *,
        batch_size: int | None = None,
        progress: Callable[[int], None] | None = None,
        together: bool = False,
    ) -> Tensor:
        """Embeddings of images in the order given, float32 ``[N, dim]`` on the run's device.

        ``images`` are one or many paths, bytes of image files, Pillow images, uint8 arrays or tensors, all treated
        alike (:class:`~nearkin.data.image_inputs.ImageInputs`), or the ``rows`` of opened images. The other arguments
        are those of :func:`~nearkin.training.embedding.embed_images`.
        """
        with float32_products(self.recipe.training.precision):
            return embed_images(
                self.encoder,
                as_images(images, shorter_side=data_of(self.recipe).shorter_side),
                self.transform,
                rows=rows,
                batch_size=batch_size or self.recipe.training.evaluation_batch_size,
                workers=self.recipe.data.workers,
                device=self.device,
                dtype=self.dtype,
                progress=progress,
                flip=self.recipe.protocol.flip,
                together=together,
            )


def load_run(
    path: str | Path,
    *,
    which: str = "best",
    device: str | None = None,
    flip: bool | None = None,
    eval_size: int | None = None,
) -> TrainedRun:
    """Load the encoder of a run folder, with its ``best`` or ``last`` weights.

    Images are embedded as the run was scored; ``flip`` (average with the mirror image) and ``eval_size`` (side of the
    crops in pixels) override that.
    """
    if which not in ("best", "last"):
        raise RecipeError(f"checkpoint must be 'best' or 'last', got {which!r}")
    folder = RunFolder.existing(path)
    recipe = folder.recipe()
    if not folder.is_finished:
        evaluations = folder.evaluations()
        epoch = f"{evaluations[-1]['epoch']:g}" if evaluations else "0"
        notice(
            f"{folder.path} is not finished (epoch {epoch} of {recipe.training.epochs}): its {which} weights are used. "
            f"Continue it with: {folder.resume_command}, or end it with: nearkin train {folder.path} --finish"
        )
    changes = {"protocol.flip": flip, "protocol.eval_size": eval_size}
    if given := [f"{key}={json.dumps(value)}" for key, value in changes.items() if value is not None]:
        recipe = load_recipe(recipe.as_mapping(), given)
    where = pick_device(device or "auto")
    encoder = encoder_from(recipe.encoder, pretrained=False)
    weights = checkpoint.encoder_weights(folder, which)
    try:
        encoder.load_state_dict(weights)
    except RuntimeError as error:
        raise DataError(
            f"the {which} weights in {folder.path} are not those of its recipe: "
            f"{' '.join(str(error).split())[:200]}. Put back the run's files, or train again with --overwrite"
        ) from error
    precision = recipe.training.precision if where.type != "cpu" else "auto"
    return TrainedRun(
        folder, recipe, encoder.to(where).eval(), eval_transform_of(recipe), where, autocast_dtype(precision, where)
    )


def model_of_run(run: TrainedRun) -> Model:
    """A run's encoder as a model."""
    return Model(
        path=run.folder.path.absolute(),
        identity=identity_of(run),
        dim=run.encoder.dim,
        distance=run.encoder.distance,
        shorter_side=data_of(run.recipe).shorter_side,
        embed=lambda images, batch_size: run.embed(images, batch_size=batch_size).cpu().numpy(),
        was_trained_on=None if (trained := images_trained_on(run)) is None else trained.__contains__,
        classes=lambda: frozenset(run.folder.split.class_names) - {""},
        class_folders=data_of(run.recipe).class_folders,
    )


def identity_of(run: TrainedRun) -> str:
    """A hash of everything that determines the vector of an image, except rounding."""
    encoder, section, transform = run.encoder, run.recipe.encoder, run.transform
    settings = {
        "architecture": [section.backbone, section.pooling, section.last_stride, dict(section.options)],
        "preprocessing": repr(encoder.preprocessing),
        "crop": [transform.resize, transform.size, transform.squash, data_of(run.recipe).shorter_side],
        "flip": run.recipe.protocol.flip,
        "dim": encoder.dim,
        "normalisation": encoder.normalisation,
    }
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode())
    for name, weight in sorted(encoder.state_dict().items()):
        array = np.ascontiguousarray(weight.detach().cpu().numpy())
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()[:32]


def images_trained_on(run: TrainedRun) -> frozenset[str] | None:
    """Content hashes of the run's training images; None where its split cannot be read."""
    if not run.recipe.training.epochs or run.recipe.training.max_steps == 0:
        return frozenset()
    try:
        return run.folder.split.trained
    except DataError:
        return None


@dataclass(frozen=True)
class ClassProxies:
    """Vectors ``[P, dim]``, normalised as embeddings are, and the class name of each."""

    vectors: NDArray[np.float32]
    names: tuple[str, ...]


def proxies_of(path: Path, dim: int) -> ClassProxies | None:
    """The proxies of the run's loss at its best weights.

    None for an exported file, a loss on pairs, a method with its own proxies, and proxies of another dimension.
    """
    try:
        folder = RunFolder.existing(path)
        split, recipe = folder.split, folder.recipe()
        state = read_checkpoint(folder.last_checkpoint)
        if (best := state["best"]) is not None and best["step"] != state["step"]:
            state = read_checkpoint(folder.best_checkpoint(int(best["step"])))
    except (DataError, OSError):
        return None
    vectors = state["objective"].get("bank.vectors")
    if vectors is None or vectors.shape[2] != dim:
        return None
    classes = np.unique(split.labels[split.splits == "train"]).tolist()
    if len(classes) != len(vectors):
        return None
    unit = normalise(vectors.detach().float(), recipe.encoder.normalisation).flatten(0, 1).numpy()
    return ClassProxies(unit, tuple(split.class_names[label] for label in classes for _ in range(vectors.shape[1])))


_BYTES_PER_NUMBER = {".npz": 4, ".csv": 13}


@dataclass(frozen=True)
class EmbeddedFiles:
    """What :func:`embed_files` wrote, and the files that it could not read."""

    ids: tuple[str, ...]
    dim: int
    unreadable: tuple[UnreadableImageError, ...]
    left_out: tuple[LeftOut, ...]


def embed_files(
    path: str | Path,
    sources: str | Path | Sequence[str | Path],
    output: str | Path,
    *,
    which: str = "best",
    device: str | None = None,
    flip: bool | None = None,
    eval_size: int | None = None,
    progress: Progress | None = None,
) -> EmbeddedFiles:
    """Embed every readable image of ``sources`` with the run at ``path`` and write ``output`` (.npz or .csv).

    The .npz holds ``embeddings`` (float32 ``[N, dim]``) and, as text, ``ids``, ``paths`` (absolute) and ``labels``: the
    class folder or the label in a manifest, else ``""``. The .csv has the columns id, path, label, then the embedding.
    An id is the path below the folder if one folder is given, the id in a manifest, or else the path as given.

    Args:
        path: a run folder.
        sources: image files, folders with or without class folders, manifests with or without labels; one or several.
        output: the file to write.
        which: as ``device``, ``flip`` and ``eval_size`` for :func:`load_run`.
        device: where to compute.
        flip: whether an embedding is averaged with the mirror image's.
        eval_size: side of the crops in pixels.
        progress: called while images are decoded.
    """
    target = Path(output).expanduser()
    with ranks.joined():
        ranks.from_first(lambda: check_output(target))
        run = load_run(path, which=which, device=device, flip=flip, eval_size=eval_size)
        table = collect_images(sources, class_folders=run.recipe.data.class_folders)
        section = replace(data_of(run.recipe), unreadable_tolerance=1.0)
        opened = ranks.first_on_each_machine(lambda: open_data(section, table=table, progress=progress))
        needed = len(opened.table) * run.encoder.dim * _BYTES_PER_NUMBER[target.suffix]
        ranks.from_first(lambda: check_room(target.parent, needed, target.name))
        embeddings = run.embed(opened.images, together=True).cpu().numpy()
        if ranks.is_first():
            write_atomically(target, (_npz if target.suffix == ".npz" else _csv)(opened.table, embeddings))
        return EmbeddedFiles(opened.table.ids, run.encoder.dim, tuple(opened.unreadable), table.left_out)


def check_output(target: Path) -> None:
    if target.suffix not in _BYTES_PER_NUMBER:
        raise RecipeError(f"the output file must end in .npz or .csv, got {str(target)!r}")
    if not target.parent.is_dir():
        raise RecipeError(f"cannot write {target.name}: there is no folder {str(target.parent)!r}; make it first")
    if target.is_dir():
        raise RecipeError(f"cannot write {str(target)!r}: it is a folder; give a file name in it")
    check_writable(target.parent)


def _columns(table: ImageTable) -> tuple[tuple[str, ...], list[str], list[str]]:
    paths = [os.path.abspath(image) for image in table.images]
    return table.ids, paths, [table.class_names[label] for label in table.labels.tolist()]


def _npz(table: ImageTable, embeddings: NDArray[np.float32]) -> bytes:
    ids, paths, labels = (np.array(column, dtype=np.str_) for column in _columns(table))
    buffer = io.BytesIO()
    np.savez(buffer, embeddings=embeddings, ids=ids, paths=paths, labels=labels)
    return buffer.getvalue()


def _csv(table: ImageTable, embeddings: NDArray[np.float32]) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(["id", "path", "label", *(f"e{i}" for i in range(embeddings.shape[1]))])
    for name, path, label, row in zip(*_columns(table), embeddings.tolist(), strict=True):
        writer.writerow([name, printable(path), label, *(f"{value:.8g}" for value in row)])
    return text.getvalue().encode()
