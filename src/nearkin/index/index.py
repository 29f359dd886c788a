"""An index: a folder of images' vectors that can be searched, added to and removed from."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Unpack, overload

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from nearkin.data.folder import ClassFolders, suggest_path
from nearkin.disk import make_folder, sole_writer_of, writing
from nearkin.errors import DataError, RecipeError, did_you_mean
from nearkin.evaluation.confidence import DEFAULT_THRESHOLD, VOTERS, ClassProfile, Confidence
from nearkin.evaluation.neighbours import Distance
from nearkin.index.adding import (
    Added,
    Labels,
    Progress,
    Source,
    Sources,
    Unfinished,
    hash_of_pixels,
    sources_of,
    write_all,
)
from nearkin.index.calibration import calibrate, read_confidence
from nearkin.index.engine import Engine, check_engine, new_identity, open_engine, without_password
from nearkin.index.filters import Where
from nearkin.index.items import NAME, Item, Items, MissingItemError, vectors_folder
from nearkin.index.search import (
    Classified,
    Hit,
    OneQuery,
    Queries,
    SearchContext,
    SearchOptions,
    are_several,
    combined,
    is_id,
    query_vectors,
)
from nearkin.index.segments import Segments
from nearkin.runs.model import Model, reload

FORMAT = 2


@dataclass(frozen=True)
class Status:
    """The contents of an index."""

    path: Path
    items: int
    labelled: int
    labels: int
    found: int
    """Image files that were found in what was added."""
    embedded: int
    duplicates: int
    """Embedded files with the same content as another one."""
    failed: tuple[tuple[str, str], ...]
    """Files that could not be read, and the reasons."""
    columns: tuple[str, ...]
    dim: int
    distance: str
    encoder: str
    model: str
    model_options: Mapping[str, Any]
    """The options with which its encoder was loaded: mirror images, further runs."""
    unfinished: Unfinished | None
    """The ``add`` that is running or was interrupted."""
    engine: Mapping[str, Any]
    confidence: Confidence | None
    no_confidence: str | None
    """Why there is no confidence, and what to do."""


@dataclass(frozen=True)
class Stored:
    """The id of an uploaded image; ``added`` is False if its content was there already."""

    id: int
    added: bool


class Index:
    """Any number of images with their vectors by one encoder; made by :meth:`create`, opened by :meth:`open`.

    Any number of processes may search. One at a time may change it, and the others see this in their next search.
    """

    def __init__(self, folder: Path, items: Items, model: Model | None) -> None:
        self.path = folder
        self._items, self._model = items, model
        if (made := items.fact("format")) != FORMAT:
            raise DataError(f"{folder} was made by another version of nearkin (format {made}): make it again")
        self.dim: int = items.fact("dim")
        self.distance: Distance = items.fact("distance")
        self._encoder = items.fact("encoder"), items.fact("vectors")
        self._vectors = Segments(vectors_folder(folder, items) / "vectors", self.dim, np.float32)
        self._engine_name = items.fact("engine")
        self._engine = self._open_engine(self._engine_name)
        self._seen: tuple[int, int] | None = None
        self._live: NDArray[np.int64] = np.empty(0, dtype=np.int64)
        self.confidence: Confidence | None = None  # as of the last search
        self._no_confidence: str | None = None
        self._profiles: dict[str, ClassProfile] = {}
        self._lock = threading.Lock()

    @classmethod
    def create(cls, folder: str | Path, model: Model, *, engine: str = "exact") -> Index:
        """A new, empty index for the vectors of ``model`` in ``folder``, which must be new or empty.

        ``engine`` is ``exact``, ``faiss``, or the address of a PostgreSQL or a Milvus.
        """
        path = Path(folder).expanduser()
        check_engine(engine)
        if path.exists() and (not path.is_dir() or any(not entry.name.startswith(".") for entry in path.iterdir())):
            raise RecipeError(f"{path} exists already: give a new folder, or open its index with Index.open")
        facts = {
            "format": FORMAT,
            **encoder_facts(model),
            "engine": without_password(engine),
            "identity": new_identity(),
            "rows": 0,
        }
        with sole_writer_of(path):
            items = Items.create(path / NAME, facts)
        index = cls(path, items, model)
        index._engine = index._open_engine(engine)  # with the password, which is not stored
        return index

    @classmethod
    def open(cls, folder: str | Path, model: Model | None = None) -> Index:
        """The index in ``folder``; without ``model`` its encoder is loaded from its path when it is needed."""
        path = Path(folder).expanduser()
        if not (path / NAME).is_file():
            absent = f"there is no index {str(path)!r}{suggest_path(path) or ':'}"
            what = f"{path} is no index:" if path.exists() else absent
            raise DataError(f"{what} 'nearkin index RUN FOLDER -o INDEX' makes one")
        items = Items.open(path / NAME)
        if model is not None:
            _check_same_encoder(path, items, model)
        return cls(path, items, model)

    @property
    def model(self) -> Model:
        """The encoder of the index, loaded from its path when the index was made."""
        if self._model is None:
            try:
                model = reload(self._items.fact("model"), self._items.fact("model_options") or {})
            except DataError as error:
                where = "Give the path of its run: Index.open(folder, model=nearkin.load(RUN)), or --run RUN"
                raise DataError(f"the encoder of {self.path} cannot be loaded: {error}. {where}") from error
            _check_same_encoder(self.path, self._items, model)
            self._model = model
        return self._model

    def __len__(self) -> int:
        return int(self._items.rows("SELECT count(*) FROM items")[0][0])

    @property
    def version(self) -> tuple[int, int]:
        """A value that differs after every change, by any process, for as long as the index is open."""
        return self._items.version()

    def close(self) -> None:
        self._items.close()

    def add(
        self,
        source: Any,
        labels: Labels = "folder",
        *,
        class_folders: ClassFolders | None = None,
        batch_size: int = 64,
        progress: Progress | None = None,
    ) -> Added:
        """Add the images of a folder or a manifest, image files, or images as :meth:`Model.encode` takes them.

        Images whose content is there already are skipped, so the same call resumes after an interruption. A file with
        new content replaces its old item, and a new label the old one. Each batch is on disk before the next begins.
        ``failed`` and :meth:`status` list unreadable files.

        Args:
            source: where the images are.
            labels: ``"folder"`` for the names of folders or a manifest's labels, one for each image, or None.
            class_folders: which folders are the classes, ``deepest`` or ``top``; default: as in the encoder's run.
            batch_size: images that are embedded and written together.
            progress: called with the numbers of images done and in all.
        """
        if batch_size < 1:
            raise RecipeError(f"batch_size must be at least 1, got {batch_size}")
        class_folders = class_folders or self.model.class_folders
        return self._add(sources_of(source, labels, self.model.shorter_side, class_folders), batch_size, progress)

    def _add(self, sources: Sources, batch_size: int, progress: Progress | None = None) -> Added:
        model = self.model
        with self._writing():
            added = write_all(sources, self._items, self._vectors, self._engine, model, batch_size, progress)
            if added.added:
                self._engine.rebuild(self._items.fact("rows"), self._items.ids())
                with self._items.writing():  # so that every reader loads the engine's new files
                    self._items.set_fact("engine", self._engine_name)
            if added.added or self._items.fact("calibration") is None:
                self._refresh()
                calibrate(self._items, self._vectors, model)
            if sources.paths:
                with self._items.writing():
                    self._items.set_fact("unfinished", None)
        return added

    def add_pixels(self, pixels: NDArray[np.uint8], label: str | None, columns: Mapping[str, str]) -> Stored:
        """Add one image ``[H, W, 3]`` without a file, decoded as the encoder wants it; numbers in columns are text."""
        added = self._add(Sources([pixels], [Source(None, 0, label, columns)]), batch_size=1)
        return Stored(self._items.ids_by_hash([hash_of_pixels(pixels)]).popitem()[1], added.added == 1)

    def add_test_images(self, run: str | Path, *, progress: Progress | None = None) -> Added:
        """Add the test images of ``run`` with their labels; those without a file become PNG files in the index."""
        from nearkin.runs.data import open_own_data, split_as_stored
        from nearkin.runs.trained_run import load_run
        from nearkin.training.build import data_of

        trained = load_run(run)
        section = replace(data_of(trained.recipe), unreadable_tolerance=1.0)
        data = split_as_stored(trained.folder, trained.recipe, open_own_data(trained.folder, section), scored=("test",))
        if data.protocol.test is None:
            raise DataError(f"{run} has no test images, as all of its images train: give a folder of images")
        table, rows = data.images.table, np.unique(data.protocol.test.rows)
        labels = [table.class_names[label] for label in table.labels[rows].tolist()]
        if isinstance(table.images, np.ndarray):
            paths = []
            for row in rows.tolist():
                name = re.sub(r"[^\w+.-]", "_", table.ids[row])
                paths.append(path := self.path / "images" / f"{name}-{row}.png")
                make_folder(path.parent)
                with writing(path):
                    Image.fromarray(table.images[row]).save(path)
        else:
            paths = [Path(table.images[row]) for row in rows.tolist()]
        return self.add(paths, labels, progress=progress)

    def remove(self, ids: Iterable[int]) -> None:
        """Remove items for good, or none if one does not exist; vectors and thumbnails are overwritten with zeros."""
        wanted = [int(id) for id in ids]
        with self._writing():
            self._existing(wanted)
            with self._items.writing():
                self._items.delete(wanted)
            # All rows without an item, including those of an interrupted removal.
            removed = np.setdiff1d(np.arange(self._items.fact("rows")), self._items.ids())
            self._vectors.clear(removed)
            self._engine.remove(removed)

    def use_engine(self, engine: str) -> None:
        """Replace the engine by another, built from the stored vectors; the old one's files are deleted."""
        check_engine(engine)
        name = without_password(engine)
        with sole_writer_of(self.path):
            rows = self._items.fact("rows")
            self._vectors.truncate(rows)
            new, was = self._open_engine(engine), self._items.fact("engine")
            old = self._engine if was == self._engine_name else self._open_engine(was)
            new.rebuild(rows, self._items.ids())
            with self._lock:
                self._engine, self._engine_name, self._seen = new, name, None
            with self._items.writing():
                self._items.set_fact("engine", name)
            if name != was:
                old.discard()

    def ids(self, where: Where | None = None) -> NDArray[np.int64]:
        """The items that meet ``where``, ascending."""
        return self._items.ids(where)

    def get(self, id: int) -> Item:
        """One item; an error if it does not exist."""
        return self.items([id])[0]

    def items(self, ids: Sequence[int] | NDArray[np.int64]) -> list[Item]:
        """Items in the order of ``ids``; an error if one does not exist."""
        items = self._existing(ids)
        return [items[int(id)] for id in ids]

    def vectors(self, ids: Sequence[int] | NDArray[np.int64]) -> NDArray[np.float32]:
        """The stored vectors ``[N, dim]`` of items, in the order of ``ids``; an error if one does not exist."""
        self._refresh()
        self._existing(ids)
        return self._vectors.take(np.asarray(ids, dtype=np.int64))

    def labels(self) -> tuple[NDArray[np.int64], NDArray[np.str_]]:
        """The items that have a label, ascending, and their labels."""
        rows = self._items.rows("SELECT id, label FROM items WHERE label IS NOT NULL ORDER BY id")
        return np.array([row[0] for row in rows], dtype=np.int64), np.array([row[1] for row in rows], dtype=np.str_)

    def label_counts(self) -> list[tuple[str, int]]:
        """Labels and their numbers of items, the most frequent first."""
        return self._items.rows(
            "SELECT label, count(*) AS n FROM items WHERE label IS NOT NULL GROUP BY label ORDER BY n DESC, label"
        )

    def column_ranges(self) -> list[tuple[str, bool, float | None, float | None]]:
        """The columns of manifests: name, whether it holds numbers, and if so the least and the largest."""
        ranges = []
        for name, field in self._items.columns().items():
            ends = self._items.rows(f"SELECT min({field.column}), max({field.column}) FROM items")[0]
            ranges.append((name, field.is_number, *(ends if field.is_number else (None, None))))
        return ranges

    def thumbnail(self, id: int) -> bytes:
        """A small JPEG of an item, without the metadata of its file."""
        image = self._items.thumbnail(id)
        if image is None:
            raise MissingItemError(f"there is no item {id} in {self.path}")
        return image

    @overload
    def search(self, query: OneQuery | None = None, k: int = 10, **options: Unpack[SearchOptions]) -> list[Hit]: ...

    @overload
    def search(self, query: Queries, k: int = 10, **options: Unpack[SearchOptions]) -> Any: ...

    def search(
        self,
        query: OneQuery | Queries | None = None,
        k: int = 10,
        *,
        where: Where | None = None,
        like: Sequence[int] = (),
        unlike: Sequence[int] = (),
        group_by: str | None = None,
        min_confidence: float | None = None,
        offset: int = 0,
        crop: Sequence[float] | None = None,
        collapse: bool = False,
    ) -> Any:
        """The ``k`` nearest items of an image, an id or a vector: a list of hits, nearest first and equal ones by id.

        Several queries, in a list or as rows of an array, give a list of such lists. Exact with the engine ``exact``.

        Args:
            query: a path, bytes, a Pillow image, a uint8 array; the id of an item; a vector of floating point numbers.
            k: the most hits.
            where: by field a value, a list of alternatives, or a range ``(from, to)`` with None for no end.
            like: ids of positive examples; with them no query is needed.
            unlike: ids of negative examples.
            group_by: a field; only the nearest item of each of its values is shown.
            min_confidence: leave out hits that are less likely than this to be of the query's class.
            offset: how many hits to skip, for the next page.
            crop: the part of the image to search for: x, y, width and height as shares of it.
            collapse: show only the nearest copy of a photo; :attr:`Hit.copies` counts the copies.
        """
        for name, value, least in (("k", k, 1), ("offset", offset, 0)):
            if not is_id(value) or value < least:
                raise RecipeError(f"{name} must be a whole number of at least {least}, got {value!r}")
        self._refresh()
        self._existing([*like, *unlike])
        vectors, query_ids = query_vectors(query, self.dim, lambda: self.model, self.vectors, crop)
        positives, negatives = (self.vectors(ids) if len(ids) else None for ids in (like, unlike))
        vectors = combined(vectors, positives, negatives, self.distance)
        excluded = [{*ids, *like, *unlike} for ids in query_ids]
        self._check_confidence(min_confidence)
        if group_by is not None and group_by not in self._items.fields():
            raise RecipeError(f"cannot group by {group_by!r}: {did_you_mean(group_by, self._items.fields())}")
        pages = []
        for hits in self._context(where).hits(vectors, excluded, offset + k, group_by, collapse):
            if min_confidence is not None:
                hits = [hit for hit in hits if hit.confidence is not None and hit.confidence >= min_confidence]
            pages.append(hits[offset : offset + k])
        return pages if query is not None and are_several(query) else pages[0]

    @overload
    def classify(
        self, query: OneQuery, *, min_confidence: float | None = ..., where: Where | None = ...
    ) -> Classified: ...

    @overload
    def classify(self, query: Queries, *, min_confidence: float | None = ..., where: Where | None = ...) -> Any: ...

    def classify(self, query: Any, *, min_confidence: float | None = None, where: Where | None = None) -> Any:
        """The label of an image by its nearest labelled items, or "none of these": a :class:`Classified`.

        It is that of the nearest class, by the mean of the scores of its nearest item and of its mean. Below
        ``min_confidence``, by default 0.5, there is none. Without learned confidences there always is one, and
        ``min_confidence`` is an error. Several queries give a list.
        """
        self._refresh()
        self._check_confidence(min_confidence)
        least = DEFAULT_THRESHOLD if min_confidence is None else min_confidence
        labelled, items = self._items.rows("SELECT count(label), count(*) FROM items")[0]
        if not labelled:
            raise RecipeError(f"no item of {self.path} has a label: add images with labels to classify by")
        if labelled < items:
            ids = self.labels()[0]
            where = {"id": (ids if where is None else np.intersect1d(ids, self._items.ids(where))).tolist()}
        vectors, excluded = query_vectors(query, self.dim, lambda: self.model, self.vectors)
        vectors = combined(vectors, None, None, self.distance)
        profiles, context = self._profiles, self._context(where)
        answers = []
        for vector, hits in zip(vectors, context.hits(vectors, excluded, VOTERS), strict=True):
            answers.append(context.classified(vector, hits, profiles, least))
        return answers if are_several(query) else answers[0]

    def _check_confidence(self, least: float | None) -> None:
        if least is not None and self.confidence is None:
            raise RecipeError(f"{self.path} has no confidences: {self._no_confidence}")

    def status(self) -> Status:
        """The contents of the index, the files that it could not read, and how reliable its confidences are."""
        self._refresh()
        files, embedded, distinct, failed = self._items.coverage()
        counts, unfinished = self.label_counts(), self._items.fact("unfinished")
        return Status(
            path=self.path,
            items=len(self),
            labelled=sum(count for _, count in counts),
            labels=len(counts),
            found=files,
            embedded=embedded,
            duplicates=embedded - distinct,
            failed=failed,
            columns=tuple(self._items.columns()),
            dim=self.dim,
            distance=self.distance,
            encoder=self._items.fact("encoder"),
            model=self._items.fact("model"),
            model_options=self._items.fact("model_options") or {},
            unfinished=None if unfinished is None else Unfinished(**unfinished),
            engine={"name": self._engine_name, **self._engine.status()},
            confidence=self.confidence,
            no_confidence=self._no_confidence,
        )

    def _refresh(self) -> None:
        """Load the changes that this or another process has made."""
        with self._lock:
            if (version := self._items.version()) == self._seen:
                return
            if (self._items.fact("encoder"), self._items.fact("vectors")) != self._encoder:
                raise DataError(f"{self.path} was upgraded since it was opened: open it again")
            rows, name = self._items.fact("rows"), self._items.fact("engine")
            if name != self._engine_name:
                self._engine, self._engine_name = self._open_engine(name), name
            live = self._items.ids()
            self._live = live[live < rows]
            self._vectors.show(rows)
            self._engine.show(rows, self._live)
            self.confidence, self._no_confidence = read_confidence(self._items)
            self._profiles = {}
            self._seen = version

    def _open_engine(self, engine: str) -> Engine:
        distance, identity = self._items.fact("distance"), self._items.fact("identity")
        return open_engine(engine, vectors_folder(self.path, self._items) / "engine", self._vectors, distance, identity)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Hold the index as its only writer, after deleting what an interrupted writer has left."""
        with sole_writer_of(self.path):
            self._refresh()
            rows = self._items.fact("rows")
            self._vectors.truncate(rows)
            self._engine.rebuild(rows, self._live)
            yield

    def _existing(self, ids: Iterable[int]) -> dict[int, Item]:
        """Items by id; an error if one does not exist."""
        wanted = [int(id) for id in ids]
        items = self._items.get(wanted)
        if missing := [id for id in wanted if id not in items]:
            raise MissingItemError(f"there is no item {', '.join(map(str, missing[:5]))} in {self.path}")
        return items

    def _context(self, where: Where | None) -> SearchContext:
        """What a search with the filter ``where`` works on, as of the last refresh."""
        allowed = None if len(self._live) == self._vectors.rows else self._live
        if where:
            ids = self._items.ids(where)
            allowed = ids[ids < self._vectors.rows]
        return SearchContext(self._vectors, self._engine, self._items, self.confidence, self.distance, allowed)


def encoder_facts(model: Model) -> dict[str, Any]:
    """The facts that an index stores about its encoder."""
    return {
        "encoder": model.identity,
        "model": str(model.path),
        "model_options": dict(model.options),
        "dim": model.dim,
        "distance": model.distance,
    }


def _check_same_encoder(folder: Path, items: Items, model: Model) -> None:
    """Refuse an encoder whose vectors cannot be compared with those of the index."""
    if model.identity != items.fact("encoder"):
        options = "".join(f", {key} {value}" for key, value in (items.fact("model_options") or {}).items())
        raise DataError(
            f"{folder} was made with another encoder than {model.path} is now: make another index with it, or give the "
            f"run that made this one ({items.fact('model')}{options})"
        )
