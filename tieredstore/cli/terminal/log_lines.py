"""Log lines of a running service on stderr, for a person or a log collector."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime


class _JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, logger, message; for a bug also the traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


class _Stderr(logging.Handler):
    """Writes to the current ``sys.stderr``, which tests and redirections replace."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record."""
        sys.stderr.write(self.format(record) + "\n")
        sys.stderr.flush()


def log_lines(*, as_json: bool) -> None:
    """Write the log of a service as lines with time and level, or as JSON, instead of the sentences of other
    commands."""
    logger = logging.getLogger("tieredstore")
    handler = _Stderr()
    handler.setFormatter(_JsonFormatter() if as_json else logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger.handlers = [handler]
    logger.setLevel(logging.INFO)
