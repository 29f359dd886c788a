"""Which runs may go into a soup: one architecture, the same images, no test class that another was trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nearkin.data.source import is_benchmark
from nearkin.errors import DataError, RecipeError
from nearkin.evaluation.stored_split import StoredSplit
from nearkin.recipe import Recipe
from nearkin.recipe.identity import flat, located
from nearkin.runs.folder import RunFolder
from nearkin.runs.scores import Scores
from nearkin.training.head_start import MOST_IMAGES

NO_ARCHITECTURE = ("weights", "head_init", "freeze_batch_norm", "freeze_scale_and_shift", "channels_last")
"""Keys of the encoder that say where it began and how it trained or lies in memory; all others make its shape."""


@dataclass(frozen=True)
class Part:
    """A finished run, as far as its folder tells without its weights."""

    path: str
    """As it was given."""
    folder: RunFolder
    recipe: Recipe
    split: StoredSplit
    scores: Scores

    @property
    def trained(self) -> NDArray[np.bool_]:
        """Of each image, whether it trained."""
        return np.isin(self.split.splits, "train")

    @property
    def tested(self) -> NDArray[np.bool_]:
        return np.isin(self.split.splits, ("test", "query", "gallery"))


def open_parts(paths: Sequence[str | Path]) -> list[Part]:
    """Finished runs whose weights can be averaged, in the order given.

    Raises:
        RecipeError: for fewer than two runs, one that is named twice, a soup, or different architectures.
        DataError: for a run that is not there or not finished, different images, or a test class of one run that
            another was trained on.
    """
    if len(paths) < 2:
        given = ", ".join(map(str, paths)) or "none"
        raise RecipeError(f"a soup is of two runs or more, got {given}: nearkin soup RUN RUN... -o FOLDER")
    parts = [_opened(path) for path in paths]
    seen: dict[Path, Part] = {}
    for part in parts:
        before = seen.setdefault(part.folder.path.expanduser().resolve(), part)
        if before is not part:
            same = part.path if part.path == before.path else f"{before.path} and {part.path}"
            raise RecipeError(f"{same}: the same run twice, which would count double. Name each run once")
    for part in parts[1:]:
        _check_architecture(parts[0], part)
        _check_images(parts[0], part)
    for scored, other in permutations(parts, 2):
        _check_leak(scored, other)
    return parts


def different_starts(parts: Sequence[Part]) -> list[str]:
    """A sentence for each run that began otherwise than the first, with what that means for a mean of the weights.

    Weights that began alike and were trained apart have mostly stayed in one basin of the loss, where a mean of them
    is as good as they are; those that began as other random numbers have not.
    """
    return [said for part in parts[1:] if (said := _different_start(parts[0], part)) is not None]


def _opened(path: str | Path) -> Part:
    folder = RunFolder.existing(Path(path).expanduser())
    if (soup := folder.soup()) is not None:
        runs = ", ".join(part.run for part in soup.parts)
        raise RecipeError(f"{path} is a soup already: give the runs that it is of in its place ({runs})")
    scores, split = folder.scores(), folder.stored_split
    if split is None:
        raise DataError(
            f"{path} was written by an earlier version of nearkin, which did not keep its split: whether others were "
            f"trained on its test classes cannot be told. Train it anew"
        )
    return Part(str(path), folder, folder.recipe(), split, scores)


def _check_architecture(first: Part, other: Part) -> None:
    one, two = (
        {key: value for key, value in flat(located(each.recipe).as_mapping()["encoder"]).items() if value != {}}
        for each in (first, other)
    )
    keys = [key for key in dict.fromkeys([*one, *two]) if key not in NO_ARCHITECTURE and one.get(key) != two.get(key)]
    if keys:
        apart = ", ".join(f"encoder.{key} is {one.get(key)} in the one and {two.get(key)} in the other" for key in keys)
        raise RecipeError(
            f"{first.path} and {other.path} have different encoders, whose weights have no mean: {apart}. They can be "
            f"used side by side: nearkin evaluate {first.path} --with {other.path}"
        )


def _check_images(first: Part, other: Part) -> None:
    one, two = first.split, other.split
    if first.recipe.data.source == other.recipe.data.source and is_benchmark(first.recipe.data.source):
        # Those are the same images also where they were drawn or encoded anew.
        same = one.ids == two.ids and one.class_names == two.class_names and np.array_equal(one.labels, two.labels)
    else:
        same = one.images_hash == two.images_hash
    if not same:
        said = " and ".join(
            f"{each.path} on {len(each.split.ids):,} images of {each.recipe.data.source}" for each in (first, other)
        )
        raise DataError(
            f"the runs were not trained on the same data: {said}. A soup is of runs on the same images; train one of "
            f"the two anew on those of the other"
        )


def _check_leak(scored: Part, other: Part) -> None:
    """Rows mean the same image in both, as :func:`_check_images` has found."""
    labels, names = scored.split.labels, scored.split.class_names
    unseen = np.setdiff1d(labels[scored.tested], labels[scored.trained])
    classes = np.intersect1d(unseen, labels[other.trained])
    images = np.flatnonzero(scored.tested & other.trained)
    if not len(classes) and not len(images):
        return
    if len(classes):
        shown = ", ".join(names[label] for label in classes[:3].tolist()) + (" …" if len(classes) > 3 else "")
        what = f"{len(classes):,} of the {len(unseen):,} classes that {scored.path} is tested on ({shown})"
    else:
        what = f"{len(images):,} of the {int(scored.tested.sum()):,} images that {scored.path} is tested on"
    raise DataError(
        f"{other.path} was trained on {what}: a score of their mean would be on what it has seen. Take runs with the "
        f"same test classes (protocol.split_seed, protocol.test_share), or only final models, which have none"
    )


def _different_start(first: Part, other: Part) -> str | None:
    one, two = first.recipe.encoder, other.recipe.encoder
    seeds = (other.recipe.training.seed, first.recipe.training.seed)
    if _start_of(first) != _start_of(other):
        began = f"{other.path} began from {two.weights or 'random numbers'}, {first.path} from "
        return f"{began}{one.weights or 'random numbers'}: {_WORTHLESS}"
    by_seed = f"(training.seed {seeds[0]} and {seeds[1]})"
    is_random = one.weights is None and (":" not in one.backbone or one.options.get("pretrained") is False)
    if is_random and seeds[0] != seeds[1]:
        return f"{other.path} began from other random numbers than {first.path} {by_seed}: {_WORTHLESS}"
    if one.dim is None:
        return None
    heads = f"the head of {other.path} began otherwise than that of {first.path}"
    if one.head_init != two.head_init:
        return f"{heads} (encoder.head_init {two.head_init} and {one.head_init}): {_HEADS}"
    if one.head_init == "pca":
        drawn = seeds[0] != seeds[1] and first.trained.sum() > MOST_IMAGES
        others = drawn or not np.array_equal(first.trained, other.trained)
        return f"{heads} (encoder.head_init pca, of other training images): {_HEADS}" if others else None
    return f"{heads} {by_seed}: {_HEADS}" if seeds[0] != seeds[1] else None


def _start_of(part: Part) -> str | None:
    """The file by its content, as it may lie elsewhere or be another under the same name."""
    weights = part.recipe.encoder.weights
    return weights and (part.folder.environment().weights_hash or weights)


_WORTHLESS = (
    "such weights do not lie in one basin of the loss, and their mean is usually worthless. Take runs that began from "
    "the same weights with the same training.seed, or put these side by side (nearkin evaluate --with)"
)
_HEADS = (
    "a mean of the weights is only as good as the heads are alike. Take runs with the same training.seed and "
    "encoder.head_init, or put these side by side (nearkin evaluate --with)"
)
