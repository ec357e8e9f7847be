"""Errors that reach Spark's driver as a sentence.

Spark shows a Python worker's exception with its traceback, below which a user has to look for what is wrong. An error
of ours says it in one sentence, so the traceback is left out; any other exception keeps it.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

from tieredstore.errors import TieredStoreError

_HIDE: Final = "SPARK_HIDE_TRACEBACK"
"""PySpark's workers look at it when they write an exception down: ``spark.sql.execution.pyspark.udf.hideTraceback``."""

_Item = TypeVar("_Item")


@contextmanager
def one_sentence() -> Generator[None, None, None]:
    """Spark shows an error of ours that leaves this block as its class and its sentence.

    The setting is that of the worker process, which ends with the error.
    """
    try:
        yield
    except TieredStoreError as error:
        os.environ[_HIDE] = "1"
        raise error.with_traceback(None) from None


def each_in_one_sentence(items: Iterator[_Item]) -> Iterator[_Item]:
    """The items; an error of ours on the way is shown as :func:`one_sentence` does."""
    with one_sentence():
        yield from items
