"""What is done with trained encoders at test time: embeddings of several runs concatenated, rankings re-ranked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from nearkin.data.cache import Images
from nearkin.evaluation.ensemble import concatenate_embeddings
from nearkin.evaluation.protocol import as_tested
from nearkin.evaluation.reranking import Rerank
from nearkin.runs.concatenated import check_alike
from nearkin.runs.trained import TrainedRun
from nearkin.training.build import data_of


@dataclass(frozen=True)
class AtTestTime:
    """The runs that embed together, and what becomes of their embeddings and of the rankings."""

    runs: Sequence[TrainedRun]
    rerank: Rerank | None = None

    def __post_init__(self) -> None:
        check_alike(
            [run.encoder.distance for run in self.runs], [data_of(run.recipe).shorter_side for run in self.runs]
        )

    def embed(self, images: Images, rows: NDArray[np.int64]) -> Tensor:
        """Embeddings of some rows by all processes that torchrun has started, on the first run's device."""
        parts = [run.embed_together(images, rows) for run in self.runs]
        if len(parts) == 1:
            return parts[0]
        joined = concatenate_embeddings(parts, normalisation=self.runs[0].encoder.normalisation)
        return joined.div(len(parts) ** 0.5)

    def conditions(self) -> str | None:
        """In words, all that is unusual; every table of scores shows it."""
        said = [as_tested("", self.runs[0].recipe.protocol)]
        if len(self.runs) > 1:
            said.append(f"embeddings side by side with those of {', '.join(map(_name, self.runs[1:]))}")
        said += [str(self.rerank)] if self.rerank is not None else []
        return "; ".join(filter(None, said)) or None

    def record(self) -> Mapping[str, Any] | None:
        """The same with its numbers, by what it is called."""
        section = self.runs[0].recipe.protocol
        found: dict[str, Any] = {}
        if section.flip:
            found["flip"] = True
        if section.eval_size is not None:
            found["eval_size"] = section.eval_size
        elif section.eval_scale != 1:
            found["eval_scale"] = section.eval_scale
        if len(self.runs) > 1:
            found["with"] = [_name(run) for run in self.runs[1:]]
        if self.rerank is not None:
            found["rerank"] = {**asdict(self.rerank), "transductive": True}
        return found or None


def _name(run: TrainedRun) -> str:
    return str(run.folder.path)
