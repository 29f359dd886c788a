"""An index: a folder of images' vectors that can be searched, added to and removed from."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Unpack, overload

import numpy as np
from numpy.typing import NDArray

from nearkin.data.folder import suggest_folder
from nearkin.errors import DataError, RecipeError, did_you_mean, require
from nearkin.index.adding import Added, Labels, Progress, sources_of, write_all
from nearkin.index.calibration import Calibration
from nearkin.index.confidence import calibrate, read_calibration
from nearkin.index.encoder import check_same_encoder, own_encoder
from nearkin.index.engine import Engine, check_engine, new_identity, open_engine, without_password
from nearkin.index.items import NAME, Item, Items, vectors_folder
from nearkin.index.queries import Arrays, OneQuery, Queries, are_several, combined, query_vectors
from nearkin.index.refining import check_rerank
from nearkin.index.results import Classified, Hit, Status, classified, page
from nearkin.index.search import Searched, SearchOptions
from nearkin.index.segments import Segments
from nearkin.index.where import Where
from nearkin.runs.lock import sole_writer_of
from nearkin.runs.model import Model

FORMAT = 1


class Index:
    """Images of any number, by what they look like to one encoder.

    Make one with :meth:`create`, open it with :meth:`open`. Any number of processes may search; one at a time may add
    or remove, and the others see it with their next search.
    """

    def __init__(self, folder: Path, items: Items, model: Model | None) -> None:
        self.path = folder
        self._items, self._model = items, model
        facts = {key: items.fact(key) for key in ("format", "dim", "distance", "engine")}
        if facts["format"] != FORMAT:
            raise DataError(f"{folder} was made by another version of nearkin (format {facts['format']}): make it anew")
        self.dim: int = facts["dim"]
        self.distance: str = facts["distance"]
        self._encoder = items.fact("encoder"), items.fact("vectors")
        place = vectors_folder(folder, items)
        self._vectors = Segments(place / "vectors", self.dim, np.float32)
        self._engine_name = facts["engine"]
        self._engine = self._opened(facts["engine"])
        self._seen: tuple[int, int] | None = None
        self._live: NDArray[np.int64] = np.empty(0, dtype=np.int64)
        self.calibration: Calibration | None = None  # what confidences come from, as of the last search
        self._lock = threading.Lock()

    @classmethod
    def create(cls, folder: str | Path, model: Model, *, engine: str = "exact") -> Index:
        """A new, empty index for the vectors of ``model`` in ``folder``, which must be new or empty.

        ``engine`` is ``exact``, ``faiss``, ``faiss-hnsw``, or the address of a PostgreSQL or a Milvus.
        """
        place = Path(folder).expanduser()
        check_engine(engine)
        if (place / NAME).exists():
            raise RecipeError(f"{place} holds an index already: open it with Index.open, or give another folder")
        if place.exists() and (not place.is_dir() or any(not entry.name.startswith(".") for entry in place.iterdir())):
            raise RecipeError(f"{place} exists and is no index: give a new folder")
        facts = {
            "format": FORMAT,
            "encoder": model.identity,
            "model": str(model.path),
            "model_options": dict(model.options),
            "dim": model.dim,
            "distance": model.distance,
            "engine": without_password(engine),
            "identity": new_identity(),
            "rows": 0,
        }
        with sole_writer_of(place):
            items = Items.create(place / NAME, facts)
        made = cls(place, items, model)
        made._engine = made._opened(engine)  # with the password, which is not stored
        return made

    @classmethod
    def open(cls, folder: str | Path, model: Model | None = None) -> Index:
        """The index in ``folder``; without ``model`` that is loaded from where it was, once it is needed."""
        place = Path(folder).expanduser()
        if not (place / NAME).is_file():
            what = (
                f"{place} is no index" if place.exists() else f"there is no index {str(place)!r}{suggest_folder(place)}"
            )
            raise DataError(f"{what}: 'nearkin index RUN FOLDER -o INDEX' makes one")
        items = Items.open(place / NAME)
        if model is not None:
            check_same_encoder(place, items, model)
        return cls(place, items, model)

    @property
    def model(self) -> Model:
        """The encoder of the index, and no other."""
        if self._model is None:
            self._model = own_encoder(self.path, self._items)
        return self._model

    def __len__(self) -> int:
        return self._items.count()

    @property
    def version(self) -> tuple[int, int]:
        """Another one after every change, here or by another process, for as long as the index is open."""
        return self._items.version()

    def close(self) -> None:
        self._items.close()

    def add(
        self,
        source: Any,
        labels: Labels = "folder",
        *,
        batch_size: int = 64,
        progress: Progress | None = None,
    ) -> Added:
        """Add every image of a folder, a manifest, image files, or images as :meth:`Model.encode` takes them.

        What is there already is skipped by its content, so the same call after an interruption goes on, and after
        photos were added takes the new ones. A file whose content changed takes the place of what it was; a new label
        counts. Each batch is on the disk before the next is begun. What cannot be read is in ``failed`` and in
        :meth:`status`.

        Args:
            source: where the images are.
            labels: ``"folder"`` for the names of folders or what a manifest says, one for each image, or None.
            batch_size: images that are embedded and written together.
            progress: told how many images are done, and of how many.
        """
        if batch_size < 1:
            raise RecipeError(f"batch_size must be at least 1, got {batch_size}")
        model = self.model
        sources = sources_of(source, labels, model.shorter_side)
        with self._writing():
            added = write_all(sources, self._items, self._vectors, self._engine, model, batch_size, progress)
            if added.added:
                self._engine.rebuild(self._items.fact("rows"))
                with self._items.writing():  # so that every reader looks at what was built
                    self._items.set_fact("engine", self._engine_name)
            if added.added or self._items.fact("calibration") is None:
                self._refresh()
                calibrate(self._items, self._vectors, model)
        return added

    def remove(self, ids: Iterable[int]) -> None:
        """Take items out for good; all of them, or none where one is not there."""
        wanted = [int(each) for each in ids]
        with self._writing():
            self._check_there(wanted)
            with self._items.writing():
                self._items.delete(wanted)
            self._engine.remove(np.array(wanted, dtype=np.int64))

    def use_engine(self, engine: str) -> None:
        """Search by another engine from now on, which is built from the stored vectors; the old one's files go."""
        check_engine(engine)
        name = without_password(engine)
        with sole_writer_of(self.path):
            rows = self._items.fact("rows")
            self._vectors.truncate(rows)
            with self._items.writing():
                self._items.set_fact("identity", self._items.fact("identity") or new_identity())
            new, was = self._opened(engine), self._items.fact("engine")
            old = self._engine if was == self._engine_name else self._opened(was)
            new.rebuild(rows)
            with self._lock:
                self._engine, self._engine_name, self._seen = new, name, None
            with self._items.writing():
                self._items.set_fact("engine", name)
            if name != was:
                old.discard()

    def rebuild_engine(self) -> None:
        """Bring the engine's own files up to date, as every writer does first."""
        with self._writing():
            pass

    def ids(self, where: Where | None = None) -> NDArray[np.int64]:
        """The items that are there and meet ``where``, ascending."""
        return self._items.ids(where)

    def get(self, id: int) -> Item:
        """What is known of an item."""
        return self.items([id])[0]

    def items(self, ids: Sequence[int] | NDArray[np.int64]) -> list[Item]:
        """What is known of items, in the order of ``ids``; an error where one is not there."""
        found = self._check_there(ids)
        return [found[int(each)] for each in ids]

    def vectors(self, ids: Sequence[int] | NDArray[np.int64]) -> NDArray[np.float32]:
        """The stored vectors ``[N, dim]`` of items, in the order of ``ids``; an error where one is not there."""
        self._refresh()
        self._check_there(ids)
        taken: NDArray[np.float32] = self._vectors.take(np.asarray(ids, dtype=np.int64))
        return taken

    def labels(self) -> tuple[NDArray[np.int64], NDArray[np.str_]]:
        """The items that have a label, ascending, and their labels."""
        return self._items.labels()

    def thumbnail(self, id: int) -> bytes:
        """A small JPEG of an item, without anything that its file says of place or camera."""
        found = self._items.thumbnail(id)
        if found is None:
            raise DataError(f"there is no item {id} in {self.path}")
        return found

    @overload
    def search(self, query: OneQuery | None = None, k: int = 10, **options: Unpack[SearchOptions]) -> list[Hit]: ...

    @overload
    def search(self, query: Queries, k: int = 10, **options: Unpack[SearchOptions]) -> list[list[Hit]]: ...

    @overload
    def search(self, query: Arrays, k: int = 10, **options: Unpack[SearchOptions]) -> Any: ...

    def search(
        self,
        query: OneQuery | Queries | Arrays | None = None,
        k: int = 10,
        *,
        where: Where | None = None,
        like: Sequence[int] = (),
        unlike: Sequence[int] = (),
        group_by: str | None = None,
        min_confidence: float | None = None,
        offset: int = 0,
        crop: Sequence[float] | None = None,
        rerank: int | None = None,
    ) -> list[Hit] | list[list[Hit]]:
        """The ``k`` nearest items of an image, an id or a vector, nearest first and equal ones by id: a list of hits.

        Of several queries, in a list or as rows of an array, a list of such lists. Exact with the engine ``exact``.

        Args:
            query: a path, bytes, a Pillow image, a uint8 array; the id of an item; a vector of floating point numbers.
            k: how many at most.
            where: by field a value, a list of which any will do, or a range ``(from, to)`` with None for no end.
            like: ids of items that it should be like, too; with them there need be no query.
            unlike: ids of items that it should not be like.
            group_by: a field of which every value is shown once, by its nearest item.
            min_confidence: leave out hits of which it is less likely that they are of the query's kind.
            offset: how many hits to pass over, for the next page.
            crop: search for this part of the image alone: x, y, width and height as shares of it.
            rerank: order the nearest 200 by their k-reciprocal neighbours, k₁ this number; scores stay, too.
        """
        for name, value, least in (("k", k, 1), ("offset", offset, 0)):
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
                raise RecipeError(f"{name} must be a whole number of at least {least}, got {value!r}")
        check_rerank(rerank, self.distance)
        self._refresh()
        self._check_there([*like, *unlike])
        asked = query_vectors(query, self.dim, lambda: self.model, self.vectors, crop)
        wanted, unwanted = (self.vectors(each) if len(each) else None for each in (like, unlike))
        vectors = combined(asked.vectors, wanted, unwanted, self.distance)
        excluded = [{*own, *like, *unlike} for own in asked.ids]
        if min_confidence is not None and self.calibration is None:
            raise RecipeError(
                f"min_confidence needs labels to learn from, and {self.path} has too few: add labelled images"
            )
        if group_by is not None and group_by not in self._items.fields():
            raise RecipeError(f"cannot group by {group_by!r}: {did_you_mean(group_by, self._items.fields())}")
        allowed = self._allowed(where)
        searched = Searched(self._vectors, self._engine, self._items, self.calibration, self.distance, allowed)
        found = [
            page(hits, group_by, min_confidence, offset, k)
            for hits in searched.hits(vectors, excluded, offset + k, group_by, rerank=rerank)
        ]
        return found[0] if asked.is_one else found

    @overload
    def classify(
        self, query: OneQuery, k: int = 10, *, min_confidence: float = 0.5, where: Where | None = None
    ) -> Classified: ...

    @overload
    def classify(
        self, query: Queries, k: int = 10, *, min_confidence: float = 0.5, where: Where | None = None
    ) -> list[Classified]: ...

    @overload
    def classify(
        self, query: Arrays, k: int = 10, *, min_confidence: float = 0.5, where: Where | None = None
    ) -> Any: ...

    def classify(
        self, query: Any, k: int = 10, *, min_confidence: float = 0.5, where: Where | None = None
    ) -> Classified | list[Classified]:
        """The label of an image by its ``k`` nearest labelled items, or "none of these": a :class:`Classified`.

        Each neighbour counts by its confidence, and a label is the surer the further it is ahead of the next, unless
        one neighbour is surer, or they are not ten: then it has its label. Without a calibration neighbours count
        alike, and there is always a label. Several queries give a list.
        """
        labelled = self._items.labels()[0]
        if not len(labelled):
            raise RecipeError(f"no item of {self.path} has a label: add images with labels to classify by")
        if where is not None:
            labelled = np.intersect1d(labelled, self._items.ids(where))
        found = self.search(query, k, where={"id": labelled.tolist()})
        if are_several(query):
            return [classified(hits, min_confidence, self.calibration) for hits in found]
        return classified(found, min_confidence, self.calibration)

    def status(self) -> Status:
        """What is there, what is not and why, and how far confidences can be believed."""
        self._refresh()
        found, embedded, distinct, failed = self._items.coverage()
        labels = self._items.labels()[1]
        return Status(
            path=self.path,
            items=len(self),
            labelled=len(labels),
            labels=len(np.unique(labels)),
            found=found,
            embedded=embedded,
            duplicates=embedded - distinct,
            failed=tuple((file.path, str(file.reason)) for file in failed),
            left_out={name: said for name, said in (self._items.fact("left_out") or {}).items() if said},
            columns=tuple(self._items.fields())[3:],
            dim=self.dim,
            distance=self.distance,
            encoder=self._items.fact("encoder"),
            model=self._items.fact("model"),
            model_options=self._items.fact("model_options") or {},
            engine={"name": self._engine_name, **self._engine.status()},
            calibration=self.calibration,
        )

    def serve(self, port: int = 8000) -> None:
        """Search it in the browser and over HTTP on this machine, until Ctrl-C (extra ``serve``)."""
        require("uvicorn", "serve")
        from nearkin.serving.run import serve
        from nearkin.serving.settings import Settings

        serve(self, Settings(port=port), ready=print)

    def _refresh(self) -> None:
        """See what has been added and removed since, here or by another process."""
        with self._lock:
            if (version := self._items.version()) == self._seen:
                return
            self._check_not_upgraded()
            rows, name = self._items.fact("rows"), self._items.fact("engine")
            if name != self._engine_name:
                self._engine, self._engine_name = self._opened(name), name
            self._vectors.show(rows)
            self._engine.show(rows)
            live = self._items.ids()
            self._live = live[live < rows]
            self.calibration = read_calibration(self._items)
            self._seen = version

    def _opened(self, engine: str) -> Engine:
        distance, identity = self._items.fact("distance"), self._items.fact("identity") or ""
        return open_engine(engine, vectors_folder(self.path, self._items) / "engine", self._vectors, distance, identity)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Hold the index as its one writer; what a writer before left half done is put away first."""
        with sole_writer_of(self.path):
            self._refresh()
            rows = self._items.fact("rows")
            self._vectors.truncate(rows)
            self._engine.rebuild(rows)
            yield

    def _check_not_upgraded(self) -> None:
        if (self._items.fact("encoder"), self._items.fact("vectors")) != self._encoder:
            raise DataError(f"{self.path} was upgraded or compacted since it was opened: open it again")

    def _check_there(self, ids: Iterable[int]) -> dict[int, Item]:
        wanted = [int(each) for each in ids]
        found = self._items.get(wanted)
        if missing := [each for each in wanted if each not in found]:
            raise DataError(f"there is no item {', '.join(map(str, missing[:5]))} in {self.path}")
        return found

    def _allowed(self, where: Where | None) -> NDArray[np.int64] | None:
        """The rows to search among, or None for all."""
        if where:
            found = self._items.ids(where)
            return found[found < self._vectors.rows]
        return None if len(self._live) == self._vectors.rows else self._live
