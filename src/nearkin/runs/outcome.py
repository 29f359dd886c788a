"""How a run that belongs to a study ended; kept beside it as ``study.json``."""

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
    side_by_side: int = 1
    """How many runs shared the machine: times per step depend on it."""

    @classmethod
    def after(cls, row: str, seed: int, folder: RunFolder, reason: str, code: int, *, side_by_side: int) -> Outcome:
        """Of a run that has just ended. Its scores count for more than its exit: they are the last thing it writes."""
        if folder.is_finished:
            return cls(row, seed, "finished", side_by_side=side_by_side)
        missing = code in (DataError.exit_code, MissingExtraError.exit_code)
        return cls(row, seed, "skipped" if missing else "failed", reason, max(code, 1), side_by_side)

    @classmethod
    def read(cls, row: str, seed: int, folder: RunFolder) -> Outcome:
        """Of a run that may have ended, been begun, or neither."""
        kept: dict[str, Any] = {}
        with contextlib.suppress(OSError, ValueError, TypeError):  # damaged, it is as good as none
            kept = known_fields(cls, json.loads((folder.path / FILE).read_text(encoding="utf-8")))
        if folder.is_finished:
            return cls(row, seed, "finished", side_by_side=kept.get("side_by_side", 1))
        if kept.get("status") in ("failed", "skipped"):
            return cls(**kept | {"row": row, "seed": seed})
        return cls(row, seed, "unfinished", "begun, not finished" if folder.is_begun else "not run yet")

    def write(self, folder: RunFolder) -> None:
        make_folder(folder.path)
        text = json.dumps(dataclasses.asdict(self), indent=2, ensure_ascii=False)
        write_atomically(folder.path / FILE, text.encode())
