"""How a run of a study ended: ``study.json`` in its folder."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from dataclasses import dataclass
from typing import Any, Literal

from nearkin.disk import make_folder, write_atomically
from nearkin.errors import DataError, MissingExtraError
from nearkin.runs.folder import RunFolder
from nearkin.runs.scores import known_fields

Status = Literal["finished", "failed", "skipped", "unfinished"]
FILE = "study.json"


@dataclass(frozen=True)
class Outcome:
    """One row of a study with one seed."""

    row: str
    seed: int
    status: Status
    """``failed``: training broke off; ``skipped``: data, weights or an extra are missing; ``unfinished``: not yet."""
    reason: str | None = None
    exit_code: int = 0
    parallel_runs: int = 1
    """How many runs shared the machine, on which times per step depend."""

    @classmethod
    def after(cls, row: str, seed: int, folder: RunFolder, reason: str, code: int, *, parallel_runs: int) -> Outcome:
        """The outcome of a run that has just ended. A run with scores is finished, whatever its exit code."""
        if folder.is_finished:
            return cls(row, seed, "finished", parallel_runs=parallel_runs)
        missing = code in (DataError.exit_code, MissingExtraError.exit_code)
        return cls(row, seed, "skipped" if missing else "failed", reason, max(code, 1), parallel_runs)

    @classmethod
    def read(cls, row: str, seed: int, folder: RunFolder) -> Outcome:
        """The outcome of a run from its folder, which need not exist."""
        stored: dict[str, Any] = {}
        with contextlib.suppress(OSError, ValueError, TypeError):  # a damaged file counts as none
            stored = known_fields(cls, json.loads((folder.path / FILE).read_text(encoding="utf-8")))
        if folder.is_finished:
            return cls(row, seed, "finished", parallel_runs=stored.get("parallel_runs", 1))
        if stored.get("status") in ("failed", "skipped"):
            return cls(**stored | {"row": row, "seed": seed})
        return cls(row, seed, "unfinished", "begun, not finished" if folder.is_begun else "not run yet")

    def write(self, folder: RunFolder) -> None:
        make_folder(folder.path)
        text = json.dumps(dataclasses.asdict(self), indent=2, ensure_ascii=False)
        write_atomically(folder.path / FILE, text.encode())
