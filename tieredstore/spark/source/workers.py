"""The Python processes in which Spark looks sources up, plans and runs tasks, one piece of work after the other.

The JVM starts them, for planning beside the driver as well as for tasks: what ``PYSPARK_PYTHON`` named when the session
began, or else the first ``python3`` on the path, which is not the driver's own where that is of an environment that is
not activated.

Spark shows a Python worker's exception with its traceback, below which a user has to look for what is wrong. An error
of ours says it in one sentence, so the traceback is left out; any other exception keeps it. Nobody sets logging up in
these processes, so that Python writes warnings as bare sentences between Spark's own lines; they get a logger's name.
"""

from __future__ import annotations

import functools
import gc
import itertools
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from pyspark import TaskContext

from tieredstore.errors import ConfigError, TieredStoreError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_turns: Final = itertools.count(1)

_NEEDED: Final = "tieredstore", "pyarrow"
_PROBE: Final = f"import importlib.util as u; print(*(n for n in {_NEEDED} if u.find_spec(n) is None))"
_TIMEOUT_S: Final = 60
_WAY_OUT: Final = (
    'set PYSPARK_PYTHON to a Python that has it before the session begins: os.environ["PYSPARK_PYTHON"] = '
    "sys.executable is the driver's own"
)


def is_worker() -> bool:
    """Whether Spark has started this process for work in Python."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return str(getattr(main, "name", "")).startswith("pyspark.") or TaskContext.get() is not None


def spare_modules() -> None:
    """As a piece of work of Spark's begins: have the garbage collector pass over what its process keeps of the last.

    PySpark collects garbage after each of them. With all modules of PySpark, pandas and Arrow to look at that takes
    70 ms, half as long as reading 64 MiB of a log. What there is when the second one in a process begins is not looked
    at any more; by then everything has been imported. Nothing is done in other processes.
    """
    if is_worker() and next(_turns) == 2:
        gc.freeze()


def check_worker_python(spark: SparkSession) -> None:
    """ConfigError if the workers of a session run a Python on this machine that lacks this package.

    Asks an interpreter only where it is another one than this process's. A session of Spark Connect has its workers
    elsewhere, and is not checked.
    """
    from pyspark.errors import PySparkAttributeError  # noqa: PLC0415  as in spark/__init__.py

    try:
        command: str = spark.sparkContext.pythonExec
    except (AttributeError, PySparkAttributeError):
        return
    path = shutil.which(command)
    if path is None:
        raise ConfigError(f"Spark's workers are to run {command!r}, which is not there: {_WAY_OUT}")
    # By folder: `python` and `python3` of one environment are the same, links of two environments to one file are not.
    if Path(path).absolute().parent == Path(sys.executable).absolute().parent:
        return
    try:
        # Not of anybody else's choosing: what Spark is about to run itself.
        answer = subprocess.run(  # noqa: S603
            [path, "-c", _PROBE], capture_output=True, text=True, timeout=_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return  # no Python, or one that has other troubles: Spark says which
    if missing := answer.stdout.split():
        raise ConfigError(f"Spark's workers run {path}, which has no {' and no '.join(missing)}: {_WAY_OUT}")


_HIDE: Final = "SPARK_HIDE_TRACEBACK"
"""PySpark's workers look at it when they write an exception down: ``spark.sql.execution.pyspark.udf.hideTraceback``."""

_LINE: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s", "%y/%m/%d %H:%M:%S"
"""Format and time of a log line, as Spark's own are."""

_Item = TypeVar("_Item")


@contextmanager
def one_sentence() -> Generator[None, None, None]:
    """Spark shows an error of ours that leaves this block as its class and its sentence.

    The setting is that of a worker process, which ends with the error; a driver, which goes on, would hand it to the
    workers of its next session. From here on a worker writes warnings with the names of their loggers.
    """
    _name_loggers()
    try:
        yield
    except TieredStoreError as error:
        if is_worker():
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
