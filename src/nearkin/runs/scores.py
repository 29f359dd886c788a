"""Results: ``scores.json`` of a run, ``mlrc.json`` of a reality check, and evaluations."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from nearkin.errors import DataError
from nearkin.evaluation.protocol import SELECTED_ON_TEST
from nearkin.evaluation.statistics import Statistic
from nearkin.training.collapse import Collapse
from nearkin.training.state import Evaluation

ENSEMBLE_FILE = "mlrc.json"


class Record(Mapping[str, Any]):
    """A frozen dataclass that also is a mapping, equal to the JSON that it is written as."""

    def as_record(self) -> dict[str, Any]:
        return dataclasses.asdict(self)  # type: ignore[call-overload, no-any-return]

    def __getitem__(self, key: str) -> Any:
        return self.as_record()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.as_record())

    def __len__(self) -> int:
        return len(self.as_record())


@dataclass(frozen=True)
class Conditions:
    """How a run was trained and scored; the same words in every table."""

    data: str = ""
    objective: str = ""
    method: str = "plain"
    protocol: str = ""
    selection: str = ""
    """How the reported epoch was chosen."""
    test_classes: str = ""
    """Whether training has seen the classes that are scored."""
    training_conditions: str | None = None
    """For example replaced labels."""
    weights: str | None = None
    """Set if the scored weights are an average over steps."""
    seed: int = 0
    hardware: str = ""
    recipe: str = ""
    """The recipe's hash."""


@dataclass(frozen=True)
class Cost:
    """The cost of the training steps alone; memory of the GPU, or of the process on a CPU."""

    step_ms: float | None = None
    images_per_second: float | None = None
    peak_mib: float | None = None


@dataclass(frozen=True)
class NewImages:
    """How well held-out images of the training classes are labelled, as shares from 0 to 1."""

    images: int
    classes: int
    accuracy: float
    """With the right label, at any confidence."""
    refused: float
    """Without a label, since the confidence is below the default threshold."""
    unknown_refused: float
    """The same when the image's own class is removed."""

    def __str__(self) -> str:
        """
        >>> print(NewImages(98, 60, 0.912, 0.08, 0.75))
        91.2 % get the right label. At the default threshold 8.0 % get none, and 75.0 % where no other image of their
        class can be found (98 images kept out of training, of 60 classes).
        """
        shares = (self.accuracy, self.refused, self.unknown_refused)
        right, refused, unknown = (f"{100 * share:.1f} %" for share in shares)
        return (
            f"{right} get the right label. At the default threshold {refused} get none, and {unknown} where no other "
            f"image of their class can be found ({self.images:,} images kept out of training, of {self.classes:,} "
            f"classes)."
        )


@dataclass(frozen=True)
class FinalOf:
    """The run whose recipe and epoch a final model uses, with its scores."""

    run: str
    note: str
    scores: Scores


@dataclass(frozen=True, eq=False)
class Scores(Record):
    """A run's result. Also a mapping with the keys of ``scores.json``, so ``scores["test"]["R@1"]`` reads as the file.

    >>> scores = Scores.from_record({"data": "glyphs", "test": {"R@1": 0.5}})
    >>> scores.conditions.data, scores.test, scores["test"]
    ('glyphs', {'R@1': 0.5}, {'R@1': 0.5})
    """

    conditions: Conditions = field(default_factory=Conditions)
    steps: int = 0
    epochs: float = 0.0
    seconds: float = 0.0
    seconds_by: Mapping[str, float] = field(default_factory=dict)
    cost: Cost = field(default_factory=Cost)
    untrained: Mapping[str, float] | None = None
    """Of the backbone before training, without the head."""
    test: Mapping[str, float] | None = None
    """Of the reported weights; None without test classes."""
    new_images: NewImages | None = None
    """Of the reported weights; None where ``protocol.holdout_share`` kept too few images out."""
    no_new_images: str | None = None
    """Why the images that were kept out are not scored."""
    best: Evaluation | None = None
    """The evaluation that was chosen."""
    last: Evaluation = field(default_factory=dict)
    collapse: Collapse | None = None
    """Set if training destroyed the network: such a run says nothing about its loss or method."""
    lost_images: Mapping[str, int] = field(default_factory=dict)
    """By split, images that were missing when the run was resumed."""
    final_of: FinalOf | None = None

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Scores:
        given = known_fields(cls, record)
        given["conditions"] = Conditions(**known_fields(Conditions, record))
        given["cost"] = Cost(**known_fields(Cost, record.get("cost") or {}))
        if new_images := record.get("new_images"):
            given["new_images"] = NewImages(**new_images)
        if collapse := record.get("collapse"):
            given["collapse"] = Collapse(**collapse)
        if final_of := record.get("final_of"):
            given["final_of"] = FinalOf(final_of["run"], final_of["note"], cls.from_record(final_of["scores"]))
        return cls(**given)

    def as_record(self) -> dict[str, Any]:
        record = super().as_record()
        record = record.pop("conditions") | record
        if self.final_of is not None:
            record["final_of"]["scores"] = self.final_of.scores.as_record()
        optional = ("weights", "collapse", "new_images", "no_new_images", "lost_images", "final_of")
        return {key: value for key, value in record.items() if value or key not in optional}

    @property
    def chosen_on_test(self) -> bool:
        """Whether the reported epoch has the best test scores; tables then show the last one, too."""
        last_epoch = self.conditions.selection.startswith("last epoch")
        return self.conditions.protocol in SELECTED_ON_TEST and not last_epoch

    @property
    def chosen(self) -> Evaluation:
        return self.best or {}

    @property
    def length(self) -> str:
        return "1 epoch" if self.epochs == 1 else f"{self.epochs:g} epochs"

    @property
    def on_new_images(self) -> str | None:
        """A sentence on the images that were kept out of training; None without any."""
        subject = "New images" if self.final_of is None else "This model on new images"
        result = self.new_images or (self.no_new_images and f"not scored; {self.no_new_images}.")
        return f"{subject} of known classes: {result}" if result else None


def collapse_mark(runs: Sequence[Scores]) -> str:
    """The addition to the title of runs of one recipe of which some collapsed.

    >>> collapsed = Scores(collapse=Collapse(1, "R@1 51.1 → 3.2", "Train again with training.warmup_epochs=1."))
    >>> collapse_mark([collapsed]), collapse_mark([collapsed, Scores()]), collapse_mark([Scores()])
    (' (collapsed)', ' (1 of 2 collapsed)', '')
    """
    collapsed = sum(run.collapse is not None for run in runs)
    count = "" if collapsed == len(runs) else f"{collapsed} of {len(runs)} "
    return f" ({count}collapsed)" if collapsed else ""


def collapse_notes(title: str, runs: Sequence[Scores]) -> list[str]:
    """A sentence on runs of one recipe of which some collapsed."""
    collapses = [run.collapse for run in runs if run.collapse is not None]
    consequence = f"The difference of {title} from its base means nothing."
    return [f"{title}{collapse_mark(runs)}: {collapses[0]} {consequence}"] if collapses else []


@dataclass(frozen=True, eq=False)
class EvaluationResult(Record):
    """Scores of a run or an untrained backbone on any images."""

    data: str
    images: int
    classes: int
    hardware: str
    scores: Mapping[str, float]
    run: str | None = None
    checkpoint: str | None = None
    trained_on: Mapping[str, int] | None = None
    """How many of the images and classes the run has seen in training."""
    note: str | None = None
    backbone: str | None = None
    weights: str | None = None
    conditions: str | None = None
    """What is unusual about how the images were embedded and ranked."""

    def as_record(self) -> dict[str, Any]:
        keys = ["backbone", "weights"] if self.run is None else ["run", "checkpoint", "trained_on", "note"]
        keys += [] if self.conditions is None else ["conditions"]
        return {key: getattr(self, key) for key in (*keys, "data", "images", "classes", "hardware", "scores")}


@dataclass(frozen=True)
class Combinations:
    """Ensembles of one model per fold: how many were scored, and how many are possible."""

    scored: int = 1
    possible: int = 1
    repeats_by_fold: list[list[int]] = field(default_factory=list)
    seed: int = 0


@dataclass(frozen=True)
class FoldModel:
    """A model: its held-out fold, the epoch chosen on it, and the scores on the test classes."""

    repeat: int
    fold: int
    seed: int
    recipe: str
    selection: str
    hardware: str
    epoch: float | None
    chosen_by: float | None
    """The score that chose the epoch."""
    seconds: float
    scores: Mapping[str, float]


@dataclass(frozen=True, eq=False)
class EnsembleScores(Record):
    """A reality check: the mean score of a repeat's models, and the score of their ``concatenated`` embeddings."""

    conditions: Conditions
    select_by: str
    folds: int
    repeats: int
    backbone: str
    dim: int
    concatenated_dim: int
    separate: Mapping[str, Statistic]
    concatenated: Mapping[str, Statistic]
    combinations: Combinations
    seeds: list[int]
    models: list[FoldModel]
    written: str = ""

    @classmethod
    def read(cls, folder: str | Path) -> EnsembleScores | None:
        """The content of a folder's ``mlrc.json``, or None without one."""
        file = Path(folder) / ENSEMBLE_FILE
        try:
            return cls.from_record(json.loads(file.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{file} cannot be read ({error!r}): nearkin mlrc writes it again") from error

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> EnsembleScores:
        given = known_fields(cls, record)
        for part in ("separate", "concatenated"):
            given[part] = {name: Statistic.from_record(score) for name, score in record[part].items()}
        given["combinations"] = Combinations(**known_fields(Combinations, record.get("combinations", {})))
        given["models"] = [FoldModel(**known_fields(FoldModel, model)) for model in record.get("models", ())]
        return cls(conditions=Conditions(**known_fields(Conditions, record)), **given)

    def as_record(self) -> dict[str, Any]:
        record = super().as_record()
        for part, scores in (("separate", self.separate), ("concatenated", self.concatenated)):
            # One repeat has no interval, which the file shows as null.
            record[part] = {name: {"interval": None, **score.as_record()} for name, score in scores.items()}
        conditions: dict[str, Any] = record.pop("conditions")
        del conditions["seed"]  # each model has its own
        if conditions["weights"] is None:
            del conditions["weights"]
        return conditions | record


def known_fields(cls: type[Any], record: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of a record for which a dataclass has a field."""
    return {f.name: record[f.name] for f in fields(cls) if f.name in record}
