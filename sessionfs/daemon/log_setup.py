"""Logs of the background processes: one JSON object a line, or readable lines when a person watches."""

from __future__ import annotations

import logging
import sys

import structlog


def configure_logs(level: str, *, process: str) -> None:
    """Send every log line to standard error.

    Args:
        level: ``debug``, ``info``, ``warning`` or ``error``.
        process: ``daemon`` or ``replication``, a field of every line.
    """
    watched = sys.stderr.isatty()
    render: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer() if watched else structlog.processors.JSONRenderer()
    )
    processors: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if not watched:
        processors.append(structlog.processors.format_exc_info)
    structlog.configure(
        processors=[*processors, render],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.clear_contextvars()
    structlog.contextvars.bind_contextvars(process=process)
    # Libraries speak up only when something is wrong; their debug lines may name what must not be kept.
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(name)s: %(message)s", force=True)
