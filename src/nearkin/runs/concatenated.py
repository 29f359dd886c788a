"""Several models as one: their vectors side by side. Nothing here imports torch."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from nearkin.data.cache import Images
from nearkin.errors import RecipeError
from nearkin.runs.model import HeldOut, Model, Vectors


def concatenated(models: Sequence[Model]) -> Model:
    """Models side by side, each counting the same: the cosine of two images is the mean of the models' cosines.

    Where length counts, the squared distance is the mean of the models' squared distances. They must decode images to
    the same size and be compared alike. What the first can say of training and held-out images is said of them all.
    """
    first = models[0]
    check_alike([model.distance for model in models], [model.shorter_side for model in models])

    def embed(images: Images, batch_size: int | None) -> Vectors:
        return side_by_side([model.embed(images, batch_size) for model in models])

    def prepare(images: int) -> None:
        for model in models:
            model.prepare(images)

    def held_out() -> HeldOut | None:
        found = [model.held_out() for model in models]
        kept = [each for each in found if each is not None and each.digests]
        # Only images that no one of them was trained on.
        if len(kept) < len(models) or len({each.digests for each in kept}) > 1:
            return None
        return HeldOut(side_by_side([each.vectors for each in kept]), kept[0].labels, kept[0].digests)

    others = [str(model.path) for model in models[1:]]
    return Model(
        path=first.path,
        identity=joint_identity([model.identity for model in models]),
        dim=sum(model.dim for model in models),
        distance=first.distance,
        shorter_side=first.shorter_side,
        embed=embed,
        prepare=prepare,
        held_out=held_out,
        options={**first.options, "also": others},
    )


def joint_identity(identities: Sequence[str]) -> str:
    """Of one model its own, of several a hash of theirs, in which their order counts."""
    if len(identities) == 1:
        return identities[0]
    return hashlib.sha256(f"concatenated {' '.join(identities)}".encode()).hexdigest()[:32]


def check_alike(distances: Sequence[str], sizes: Sequence[int | None]) -> None:
    """Refuse models of which one vector cannot be made, or not from one decoded image."""
    if len(set(distances)) > 1:
        raise RecipeError(
            "models that are compared by angle and models that are compared by distance do not go together: take runs "
            "with the same encoder.normalisation"
        )
    if len(set(sizes)) > 1:
        raise RecipeError(
            f"the runs decode images to different sizes ({', '.join(map(str, sizes))} pixels): take runs with the same "
            f"data.shorter_side and crops, or give all the same --eval-size"
        )


def side_by_side(parts: Sequence[Vectors]) -> Vectors:
    """Vectors ``[N, D]`` of the same images by several models, divided by the root of their number.

    >>> side_by_side([np.array([[1.0, 0.0]], dtype=np.float32)] * 4).tolist()
    [[0.5, 0.0, 0.5, 0.0, 0.5, 0.0, 0.5, 0.0]]
    """
    joined: Vectors = (np.concatenate(parts, axis=1) / np.sqrt(len(parts))).astype(np.float32)
    return joined
