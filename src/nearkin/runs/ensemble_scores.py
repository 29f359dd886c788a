"""What the models of a reality check come to, alone and together. ``mlrc.json`` in types."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nearkin.errors import DataError
from nearkin.evaluation.statistics import Statistic
from nearkin.runs.scores import Conditions, Record, known_fields

FILE = "mlrc.json"


@dataclass(frozen=True)
class Combinations:
    """Ensembles of one repeat per fold: those that were scored, of those that there are."""

    scored: int = 1
    possible: int = 1
    repeats_by_fold: list[list[int]] = field(default_factory=list)
    seed: int = 0


@dataclass(frozen=True)
class FoldModel:
    """One model: the fold it held out, the epoch that this chose, and its scores on the test classes."""

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
    """``separate``: the mean of a repeat's models; ``concatenated``: their embeddings side by side, scored as one."""

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
        """What a folder's ``mlrc.json`` holds; None where it has none."""
        file = Path(folder) / FILE
        try:
            return cls.from_record(json.loads(file.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{file} cannot be read ({error!r}): nearkin mlrc writes it anew") from error

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> EnsembleScores:
        given = known_fields(cls, record)
        for part in ("separate", "concatenated"):
            given[part] = {name: Statistic.from_record(each) for name, each in record[part].items()}
        given["combinations"] = Combinations(**known_fields(Combinations, record.get("combinations", {})))
        given["models"] = [FoldModel(**known_fields(FoldModel, each)) for each in record.get("models", ())]
        return cls(conditions=Conditions(**known_fields(Conditions, record)), **given)

    def as_record(self) -> dict[str, Any]:
        held = self.conditions.as_record()
        del held["seed"]  # each model has its own
        record = {key: value for key, value in super().as_record().items() if key != "conditions"}
        for part in ("separate", "concatenated"):
            # One repeat has no interval, and says so.
            record[part] = {name: {"interval": None, **each.as_record()} for name, each in record[part].items()}
        record["combinations"] = dataclasses.asdict(self.combinations)
        record["models"] = [dataclasses.asdict(model) for model in self.models]
        return held | record
