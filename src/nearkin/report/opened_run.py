"""A run opened for figures and reports: its weights, data, proxies, and embeddings of some of its classes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from nearkin.data.cache import OpenedImages, Progress
from nearkin.data.source import is_benchmark
from nearkin.errors import DataError
from nearkin.evaluation.protocol import Protocol, select_by
from nearkin.losses.vcpa import VariationalBank
from nearkin.numerics import normalise
from nearkin.proxies import ProxyBank
from nearkin.recipe import DataSection, Recipe, fingerprint
from nearkin.runs.data import RunData, open_data, split_as_stored, with_root_found
from nearkin.runs.folder import RunFolder
from nearkin.runs.trained_run import TrainedRun, load_run
from nearkin.training.build import build_objective, data_of
from nearkin.training.checkpoint import read_checkpoint
from nearkin.training.state import Event

IMAGE_LIMIT = 3000
"""Of a larger data set, figures embed and show some whole classes of at most this many images."""


class CannotDrawError(DataError):
    """A figure cannot be drawn for a run; the message is the reason."""


class NothingToShowError(CannotDrawError):
    """A figure does not apply to a run, such as VCPA's uncertainty to another loss."""


@dataclass(frozen=True)
class ViewOptions:
    """Which weights, classes and images to show; the same for every run that is opened."""

    checkpoint: str = "best"
    classes: int = 12
    """Classes in a map of embeddings."""
    seed: int = 0
    """Selects the classes and images that are shown, and starts t-SNE."""
    device: str | None = None
    data_root: Path | None = None
    data: str | None = None
    """Where the runs' images are now, if they have moved since training."""


@dataclass(frozen=True)
class Sample:
    """Embedded images: table rows and labels ``[N]``, embeddings ``[N, dim]`` on the CPU."""

    rows: NDArray[np.int64]
    labels: NDArray[np.int64]
    embeddings: Tensor

    def of_classes(self, classes: NDArray[np.int64]) -> Sample:
        return self._kept(np.isin(self.labels, classes))

    def of_rows(self, rows: NDArray[np.int64]) -> Sample:
        return self._kept(np.isin(self.rows, rows))

    def _kept(self, kept: NDArray[np.bool_]) -> Sample:
        return Sample(self.rows[kept], self.labels[kept], self.embeddings[torch.from_numpy(kept)])


@dataclass(frozen=True)
class Proxies:
    """Proxies ``[C, K, dim]``, normalised as the encoder normalises, and the table's label of each class ``[C]``."""

    vectors: Tensor
    classes: NDArray[np.int64]

    def of_classes(self, classes: NDArray[np.int64]) -> Tensor:
        """``[len(classes), K, dim]``, in the order of ``classes``."""
        return self.vectors[torch.from_numpy(np.searchsorted(self.classes, classes))]


class OpenedRun:
    """A run folder whose parts are loaded on first use.

    Recipe, evaluations and events need only the folder, so a run whose data has moved still has its curves.
    """

    def __init__(
        self,
        path: str | Path,
        view: ViewOptions | None = None,
        *,
        images_store: dict[object, OpenedImages] | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.view = view or ViewOptions()
        self.folder = RunFolder.existing(path)
        self.recipe: Recipe = self.folder.recipe()
        path, method = self.folder.path.expanduser().resolve(), self.recipe.method.name
        row = path.parent.name if re.fullmatch(r"seed-\d+", path.name) else None
        self.name = path.name if row is None else f"{row}-{path.name}"
        """The folder's name, in a study after the name of its row."""
        self.parts = self.recipe.objective.name + ("" if method == "plain" else f" with {method}")
        """The loss and, unless it is plain training, the method."""
        self.title = self.parts if row in (None, self.parts) else f"{row} ({self.parts})"
        """Loss and method, in a study after the name of the row, where that differs."""
        self.label = self.title
        """The run's name in a figure of several runs."""
        self.family = 0
        """The same number for runs opened together whose recipes differ only in the seed."""
        self._images_store: dict[object, OpenedImages] = {} if images_store is None else images_store
        self._progress = progress

    @cached_property
    def evaluations(self) -> list[dict[str, float | None]]:
        if rows := self.folder.evaluations():
            return rows
        raise CannotDrawError(f"{self.folder.path} has no evaluation yet")

    @cached_property
    def events(self) -> list[Event]:
        return self.folder.events()

    @property
    def select_by(self) -> str:
        return select_by(self.recipe.protocol)

    @property
    def best_evaluation(self) -> dict[str, float | None] | None:
        """The evaluation that the protocol selects, never the untrained one; None where no score selects."""
        selected = self.folder.scores().best if self.folder.is_finished else None
        scored = [row for row in self.evaluations if row["step"] and row.get(self.select_by) is not None]
        if selected is not None:
            scored = [row for row in scored if row["step"] == selected.get("step")] or scored
        return max(scored, key=lambda row: np.nan_to_num(row[self.select_by] or 0.0, nan=-np.inf), default=None)

    @property
    def data(self) -> OpenedImages:
        return self._run_data.images

    @property
    def protocol(self) -> Protocol:
        return self._run_data.protocol

    @cached_property
    def _run_data(self) -> RunData:
        section, view = data_of(self.recipe), self.view
        root = section.root if view.data_root is None else str(view.data_root)
        section = replace(section, root=root, source=view.data or section.source)
        if section not in self._images_store:
            try:
                self._images_store[section] = open_data(with_root_found(section), progress=self._progress)
            except DataError as error:
                option = "--data-root" if is_benchmark(section.source) else "--data"
                raise CannotDrawError(
                    f"the images cannot be read: {error}. If they have moved, give their new folder with {option}; "
                    f"only curves and covering can be drawn without images"
                ) from error
        data = split_as_stored(self.folder, self.recipe, self._images_store[section])
        images_hash = self.folder.split.images_hash
        # Runs on the same images share one object, so that rows are comparable and an image is embedded once in a page.
        return replace(data, images=self._images_store.setdefault((section, images_hash), data.images))

    @cached_property
    def trained(self) -> TrainedRun:
        return load_run(self.folder.path, which=self.view.checkpoint, device=self.view.device)

    @cached_property
    def training_classes(self) -> NDArray[np.int64]:
        """The table's label of each class that the objective numbers 0, 1, …"""
        return np.unique(self.data.table.labels[self.protocol.train_rows])

    @cached_property
    def objective(self) -> nn.Module:
        """The loss as the checkpoint holds it, on the CPU and in evaluation mode."""
        encoder = self.trained.encoder
        sizes = {"num_classes": len(self.training_classes), "num_images": len(self.protocol.train_rows)}
        normalisation = encoder.normalisation
        objective = build_objective(self.recipe.objective, **sizes, dim=encoder.dim, normalisation=normalisation)
        objective.load_state_dict(self._checkpoint["objective"])
        return objective.eval().requires_grad_(False)

    @property
    def bank(self) -> ProxyBank | None:
        """The proxies that the loss itself owns."""
        bank = getattr(self.objective, "bank", None)
        return bank if isinstance(bank, ProxyBank) else None

    @cached_property
    def proxies(self) -> Proxies | None:
        """The loss's proxies, or those of a method such as CCP; None where neither has any."""
        encoder = self.trained.encoder
        if self.bank is not None:
            vectors: Tensor = self.bank.vectors
        elif (bank := self._method_state.get("bank")) is not None:
            vectors = bank["vectors"]
            if self.recipe.method.options.get("anchors") == "samples":
                rows = self.protocol.train_rows[self._method_state["anchor_rows"].numpy().ravel()]
                vectors = self.embed(rows).view(*vectors.shape)
        else:
            return None
        return Proxies(normalise(vectors.detach().float(), encoder.normalisation), self.training_classes)

    @cached_property
    def at_proxies(self) -> OpenedRun:
        """This run, or the same at its last checkpoint where only that has proxies, as with CCP."""
        if self.bank is not None or self._last["method"].get("bank") is None or self.step == self._last["step"]:
            return self
        view = replace(self.view, checkpoint="last")
        last = OpenedRun(self.folder.path, view, images_store=self._images_store, progress=self._progress)
        last.label, last.family = self.label, self.family
        return last

    @cached_property
    def uncertainty(self) -> Tensor:
        """σ̄ of every proxy, ``[C, K]``."""
        bank = self.bank
        if not isinstance(bank, VariationalBank):
            raise NothingToShowError(f"the objective is {self.recipe.objective.name}; only vcpa has it")
        return bank.uncertainty()

    @cached_property
    def step(self) -> int:
        """The step of the weights that are shown."""
        return int(self._checkpoint["step"])

    @cached_property
    def training_sample(self) -> Sample:
        return self.sample(self.protocol.train_rows)

    @property
    def test_rows(self) -> NDArray[np.int64]:
        """Rows of the test images, queries and gallery together."""
        test = self.protocol.test
        if test is None:
            raise NothingToShowError("the run has no test classes")
        return test.query if test.gallery is None else np.union1d(test.query, test.gallery)

    @cached_property
    def test_sample(self) -> Sample:
        return self.sample(self.test_rows)

    def embed(self, rows: NDArray[np.int64]) -> Tensor:
        """Embeddings of table rows, ``[len(rows), dim]`` on the CPU."""
        return self.trained.embed(self.data.images, rows).cpu()

    def random(self) -> np.random.Generator:
        """A new generator, the same for every run that is opened with the same seed."""
        return np.random.Generator(np.random.Philox(self.view.seed))

    def sample(self, rows: NDArray[np.int64], limit: int = IMAGE_LIMIT) -> Sample:
        """Table rows, embedded; of more than ``limit`` some whole classes, at least as many as a map shows."""
        labels = self.data.table.labels
        rows = whole_classes(rows, labels, self.random(), limit=limit, at_least=self.view.classes)
        return Sample(rows, labels[rows], self.embed(rows))

    @cached_property
    def _last(self) -> dict[str, Any]:
        if not self.folder.last_checkpoint.exists():
            raise CannotDrawError(f"{self.folder.last_checkpoint} is missing, and with it the proxies")
        return read_checkpoint(self.folder.last_checkpoint)

    @cached_property
    def _checkpoint(self) -> dict[str, Any]:
        best = self._last["best"]
        if self.view.checkpoint == "last" or best is None or best["step"] == self._last["step"]:
            return self._last
        return read_checkpoint(self.folder.best_checkpoint(int(best["step"])))

    @property
    def _method_state(self) -> dict[str, Any]:
        """The method's state; only the last checkpoint has it."""
        state: dict[str, Any] = self._last["method"]
        return state if self._checkpoint["step"] == self._last["step"] else {}


def open_runs(
    paths: Sequence[str | Path], view: ViewOptions | None = None, *, progress: Progress | None = None
) -> list[OpenedRun]:
    """Open runs that were trained on the same data, which is read once."""
    store: dict[object, OpenedImages] = {}
    runs = [OpenedRun(path, view, images_store=store, progress=progress) for path in paths]
    sources, images = {source_of(run.recipe.data) for run in runs}, {run.folder.images for run in runs} - {None}
    if len(sources) > 1 or len(images) > 1:
        changed = "" if len(sources) > 1 else ", whose images have changed between these"
        listing = ", ".join(f"{run.folder.path} on {run.recipe.data.source}" for run in runs)
        raise DataError(f"runs in one figure must share their data{changed}: {listing}. Plot them one by one")
    families: dict[str, int] = {}
    titles, names = [run.title for run in runs], [run.name for run in runs]
    for run in runs:
        family = fingerprint(run.recipe, besides=["training.seed", "protocol.validation_seed"])
        run.family = families.setdefault(family, len(families))
        name = run.name if names.count(run.name) == 1 else run.folder.path
        label = run.title if titles.count(run.title) == 1 else f"{run.title} ({name})"
        run.label = label.replace("$", r"\$")  # matplotlib reads a bare $ as the start of a formula
    return runs


def whole_classes(
    rows: NDArray[np.int64], labels: NDArray[np.int64], rng: np.random.Generator, *, limit: int, at_least: int = 2
) -> NDArray[np.int64]:
    """All rows, or those of as many randomly chosen classes as fit below ``limit``.

    Where fewer than ``at_least`` fit, that many are taken with fewer images of each.
    """
    if len(rows) <= limit:
        return rows
    classes, sizes = np.unique(labels[rows], return_counts=True)
    order = rng.permutation(len(classes))
    fitting = int((np.cumsum(sizes[order]) <= limit).sum())
    at_least = min(at_least, len(classes))
    chosen = rows[np.isin(labels[rows], classes[order[: max(fitting, at_least)]])]
    if fitting >= at_least:
        return chosen
    share = max(1, limit // at_least)
    shuffled = rng.permutation(chosen)
    kept = [shuffled[labels[shuffled] == label][:share] for label in np.unique(labels[chosen])]
    return np.sort(np.concatenate(kept))


def source_of(section: DataSection) -> str:
    """The data that a section names, with paths resolved."""
    return section.source if is_benchmark(section.source) else str(Path(section.source).expanduser().resolve())
