"""Keeps pieces of requests out of the log: aiohttp quotes the header that it could not take, which may be a cookie or a token."""

from __future__ import annotations

import logging

from aiohttp.http_exceptions import HttpProcessingError


class _NoQuotes(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        problem = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
        if isinstance(problem, HttpProcessingError):
            record.msg, record.args = f"a malformed request was refused: {type(problem).__name__}", ()
            record.exc_info = record.exc_text = None
        return True


def quiet(logger: logging.Logger) -> None:
    """Have `logger`, which an HTTP server writes to, quote nothing of requests. Safe to repeat."""
    if not any(isinstance(one, _NoQuotes) for one in logger.filters):
        logger.addFilter(_NoQuotes())
