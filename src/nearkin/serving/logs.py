"""Logs for programs: one JSON object a line."""

from __future__ import annotations

import datetime
import json
import logging
from typing import Any

logger = logging.getLogger("nearkin.serving")


class JsonLines(logging.Formatter):
    """What was logged, with the fields that came in ``extra={"fields": {…}}``.

    >>> record = logging.LogRecord("nearkin", logging.INFO, "", 0, "it is %s", ("late",), None)
    >>> json.loads(JsonLines().format(record))["event"]
    'it is late'
    """

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.datetime.fromtimestamp(record.created, datetime.UTC).isoformat(timespec="milliseconds")
        said: dict[str, Any] = {"time": time, "level": record.levelname.lower(), "event": record.getMessage()}
        said |= getattr(record, "fields", {})
        if record.exc_info:
            said["traceback"] = self.formatException(record.exc_info)
        return json.dumps(said, ensure_ascii=False)


def log_to_stderr(level: str) -> None:
    """Send what this server and uvicorn log to the error stream."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    for name, least in (("nearkin.serving", level.upper()), ("uvicorn", "WARNING")):
        each = logging.getLogger(name)
        each.handlers, each.propagate = [handler], False
        each.setLevel(least)
