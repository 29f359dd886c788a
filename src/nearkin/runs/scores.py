"""What a finished run reports: its scores, what they hold for, and what they cost. ``scores.json`` in types."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from nearkin.evaluation.protocol import SELECTED_ON_TEST
from nearkin.training.state import Evaluation


class Record(Mapping[str, Any]):
    """A frozen dataclass that can also be read as the JSON it is written as, and is equal to it."""

    def as_record(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self)}  # type: ignore[arg-type]

    def __getitem__(self, key: str) -> Any:
        return self.as_record()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.as_record())

    def __len__(self) -> int:
        return len(self.as_record())


@dataclass(frozen=True)
class Conditions:
    """What every score of a run holds for; the same words in every table."""

    data: str = ""
    objective: str = ""
    method: str = "plain"
    protocol: str = ""
    selection: str = ""
    """How the reported epoch was chosen."""
    test_classes: str = ""
    """Whether training has seen the classes that are scored."""
    training_conditions: str | None = None
    """What was done to the training images, such as a tenth of them used."""
    weights: str | None = None
    """What the scored weights are, where they are an average of those that trained."""
    seed: int = 0
    hardware: str = ""
    recipe: str = ""
    """The recipe's hash."""

    def as_record(self) -> dict[str, Any]:
        record = dataclasses.asdict(self)
        return {key: value for key, value in record.items() if value is not None or key != "weights"}


@dataclass(frozen=True)
class Cost:
    """Of the training steps alone; memory is the device's, or on a CPU the process's."""

    step_ms: float | None = None
    images_per_second: float | None = None
    peak_mib: float | None = None


@dataclass(frozen=True)
class FinalOf:
    """The run whose recipe and epoch a final model took, with that run's scores."""

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
    baseline: str | None = None
    """What the untrained scores are of: ``backbone``, or in early versions a random head behind it."""
    test: Mapping[str, float] | None = None
    """Of the reported weights; None without test classes."""
    best: Evaluation | None = None
    """The evaluation that was chosen."""
    last: Evaluation = field(default_factory=dict)
    lost_images: Mapping[str, int] = field(default_factory=dict)
    """By split, images that were gone when the run was continued."""
    final_of: FinalOf | None = None

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Scores:
        """From what the file holds; what an early version did not write has its default."""
        given = known_fields(cls, record)
        given["conditions"] = Conditions(**known_fields(Conditions, record))
        given["cost"] = Cost(**known_fields(Cost, record.get("cost") or {}))
        if final_of := record.get("final_of"):
            given["final_of"] = FinalOf(final_of["run"], final_of["note"], cls.from_record(final_of["scores"]))
        return cls(**given)

    def as_record(self) -> dict[str, Any]:
        """What the file holds."""
        record = self.conditions.as_record()
        record |= {f.name: getattr(self, f.name) for f in fields(self) if f.name != "conditions"}
        record["cost"] = dataclasses.asdict(self.cost)
        record["final_of"] = self.final_of and {
            "run": self.final_of.run,
            "note": self.final_of.note,
            "scores": self.final_of.scores.as_record(),
        }
        optional = ("lost_images", "final_of")
        return {key: value for key, value in record.items() if value or key not in optional}

    @property
    def chosen_on_test(self) -> bool:
        """Whether the reported epoch is the one with the best test scores, beside which tables put the last."""
        last_epoch = self.conditions.selection.startswith("last epoch")
        return self.conditions.protocol in SELECTED_ON_TEST and not last_epoch

    @property
    def chosen(self) -> Evaluation:
        """The chosen evaluation, empty where there is none."""
        return self.best or {}


@dataclass(frozen=True, eq=False)
class Evaluated(Record):
    """Scores of an encoder on images that need not be its own: of a run, or of a backbone without any training."""

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
    test_time: Mapping[str, Any] | None = None
    """The same with its numbers: what was done to a trained encoder's embeddings and rankings, by its name."""

    def as_record(self) -> dict[str, Any]:
        own = ("backbone", "weights") if self.run is None else ("run", "checkpoint", "trained_on", "note")
        own = own if self.conditions is None else (*own, "conditions")
        own = own if self.test_time is None else (*own, "test_time")
        keys = (*own, "data", "images", "classes", "hardware", "scores")
        return {key: getattr(self, key) for key in keys}


def known_fields(cls: type[Any], record: Mapping[str, Any]) -> dict[str, Any]:
    """What of a record a dataclass has a field for; files of other versions hold more or less."""
    return {each.name: record[each.name] for each in fields(cls) if each.name in record}
