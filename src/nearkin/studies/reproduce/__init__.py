"""Published tables and figures, row by row: which there are, how each row is run here, and ours beside theirs."""

from __future__ import annotations

from nearkin.studies.reproduce.reproduction import Reproduction, reproduce
from nearkin.studies.reproduce.rows import Settings

__all__ = ["Reproduction", "Settings", "reproduce"]
