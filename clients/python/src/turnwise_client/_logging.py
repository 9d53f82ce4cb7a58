"""Lines of the standard `logging` in the logs of jobs."""

from __future__ import annotations

import logging

from .context import current
from .models import LogLevel


def _level(number: int) -> LogLevel:
    if number >= logging.ERROR:
        return "error"
    if number >= logging.WARNING:
        return "warn"
    return "info" if number >= logging.INFO else "debug"


class JobLogHandler(logging.Handler):
    """Adds what code logs during a run to the log of its job. The worker installs it at the root logger."""

    def emit(self, record: logging.LogRecord) -> None:
        context = current.get()
        if context is None or record.name.split(".")[0] in ("httpx2", "httpcore2", "turnwise_client"):
            return
        try:
            message = record.getMessage()
            if record.exc_info:
                message += "\n" + (self.formatter or logging.Formatter()).formatException(record.exc_info)
            context.log(message, _level(record.levelno), logger=record.name)
        except Exception:
            self.handleError(record)
