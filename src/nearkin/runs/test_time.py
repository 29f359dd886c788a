"""What is done with trained encoders once training is over: their embeddings side by side, whitened, re-ranked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nearkin import ranks
from nearkin.data.cache import Images
from nearkin.errors import RecipeError
from nearkin.evaluation.ensemble import concatenate_embeddings
from nearkin.evaluation.protocol import as_tested
from nearkin.evaluation.transductive import Change
from nearkin.evaluation.whitening import Axes, Whitening
from nearkin.runs.concatenated import check_alike, joint_identity
from nearkin.runs.data import RunData
from nearkin.runs.run_model import identity_of
from nearkin.runs.trained import TrainedRun
from nearkin.runs.whitened import learn_axes, stored_axes
from nearkin.training.build import data_of


@dataclass(frozen=True)
class AtTestTime:
    """The runs that embed together, and what becomes of their embeddings and of the rankings."""

    runs: Sequence[TrainedRun]
    whiten: bool | int = False
    shrinkage: float = 0.0
    change: Change | None = None

    def __post_init__(self) -> None:
        if self.shrinkage and self.whiten is False:
            raise RecipeError("shrinkage is of whitening: ask for that too")
        check_alike(
            [run.encoder.distance for run in self.runs], [data_of(run.recipe).shorter_side for run in self.runs]
        )

    def embed(self, images: Images, rows: NDArray[np.int64], whitening: Whitening | None = None) -> Tensor:
        """Embeddings of some rows by all processes that torchrun has started, on the first run's device."""
        parts = [run.embed_together(images, rows) for run in self.runs]
        found = parts[0]
        if len(parts) > 1:
            joined = concatenate_embeddings(parts, normalisation=self.runs[0].encoder.normalisation)
            found = joined / len(parts) ** 0.5
        return found if whitening is None else torch.from_numpy(whitening(found.cpu().numpy())).to(found.device)

    def axes(self, own: Callable[[], RunData]) -> Axes | None:
        """Those of whitening, if that is asked for: as they were kept, or from the training images of ``own`` data."""
        if self.whiten is False:
            return None
        folder, identity = self.runs[0].folder.path, joint_identity([identity_of(run) for run in self.runs])
        axes = ranks.from_first(lambda: stored_axes(folder, identity))
        if axes is None:
            data = own()
            vectors = self.embed(data.images.images, data.protocol.train_rows).cpu().numpy()
            axes = ranks.from_first(lambda: learn_axes(folder, identity, vectors))
        return axes

    def whitening(self, axes: Axes | None) -> Whitening | None:
        dim = None if self.whiten is True else self.whiten
        return None if axes is None else axes.whitening(dim, shrinkage=self.shrinkage)

    def conditions(self, axes: Axes | None) -> str | None:
        """In words, all that is unusual; every table of scores shows it."""
        said = [as_tested("", self.runs[0].recipe.protocol)]
        if len(self.runs) > 1:
            said.append(f"embeddings side by side with those of {', '.join(map(_name, self.runs[1:]))}")
        if axes is not None and (whitening := self.whitening(axes)) is not None:
            shrunk = f", shrinkage {self.shrinkage:g}" if self.shrinkage else ""
            said.append(
                f"whitened to {whitening.dim} dimensions{shrunk}, learned from {axes.images:,} training images and "
                f"from no test image"
            )
        said += [str(self.change)] if self.change is not None else []
        return "; ".join(filter(None, said)) or None

    def record(self, axes: Axes | None) -> Mapping[str, Any] | None:
        """The same with its numbers, by what it is called."""
        section, whitening = self.runs[0].recipe.protocol, self.whitening(axes)
        found: dict[str, Any] = {}
        if section.flip:
            found["flip"] = True
        if section.test_size is not None:
            found["test_size"] = section.test_size
        elif section.test_scale != 1:
            found["test_scale"] = section.test_scale
        if len(self.runs) > 1:
            found["with"] = [_name(run) for run in self.runs[1:]]
        if axes is not None and whitening is not None:
            found["whiten"] = {"dim": whitening.dim, "shrinkage": self.shrinkage, "training_images": axes.images}
        if self.change is not None:
            found[type(self.change).__name__.lower()] = {**asdict(self.change), "transductive": True}
        return found or None


def _name(run: TrainedRun) -> str:
    return str(run.folder.path)
