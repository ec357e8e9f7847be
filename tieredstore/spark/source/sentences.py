"""Errors and warnings that reach Spark's driver as sentences.

Spark shows a Python worker's exception with its traceback, below which a user has to look for what is wrong. An error
of ours says it in one sentence, so the traceback is left out; any other exception keeps it. Nobody sets logging up in
these processes, so that Python writes warnings as bare sentences between Spark's own lines; they get a logger's name.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

from tieredstore.errors import TieredStoreError
from tieredstore.spark.source.workers import is_worker

_HIDE: Final = "SPARK_HIDE_TRACEBACK"
"""PySpark's workers look at it when they write an exception down: ``spark.sql.execution.pyspark.udf.hideTraceback``."""

_LINE: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s", "%y/%m/%d %H:%M:%S"
"""Format and time of a log line, as Spark's own are."""

_Item = TypeVar("_Item")


@contextmanager
def one_sentence() -> Generator[None, None, None]:
    """Spark shows an error of ours that leaves this block as its class and its sentence.

    The setting is that of the worker process, which ends with the error. From here on that process writes warnings
    with the names of their loggers.
    """
    _name_loggers()
    try:
        yield
    except TieredStoreError as error:
        os.environ[_HIDE] = "1"
        raise error.with_traceback(None) from None


def each_in_one_sentence(items: Iterator[_Item]) -> Iterator[_Item]:
    """The items; an error of ours on the way is shown as :func:`one_sentence` does."""
    with one_sentence():
        yield from items


@functools.cache
def _name_loggers() -> None:
    """In a process that Spark has started: where logging is set up, or is later, nothing changes."""
    if logging.lastResort is not None and is_worker():
        logging.lastResort.setFormatter(logging.Formatter(*_LINE))
