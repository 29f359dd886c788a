"""Rows that are run as a study does it, without a table."""

from __future__ import annotations

from nearkin.studies.study import Study


class Rows(Study):
    """``Rows(rows, folder).run()`` returns the outcomes."""

    table = record = write = None

    def __init__(self, rows, folder, seeds=(0,)):
        self.rows, self.folder, self.seeds = rows, folder, seeds
