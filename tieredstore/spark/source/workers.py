"""The Python processes in which Spark looks up sources, plans and runs tasks, one after the other.

The JVM starts them, for planning beside the driver as well as for tasks: the one in ``PYSPARK_PYTHON`` when the session
began, or else the first ``python3`` on the path, which differs from the driver's own if its environment is not
activated.

Spark shows a Python worker's exception with its traceback, above the actual reason. An error of ours is one sentence,
so the traceback is left out; any other exception keeps it. Logging is not configured in these processes, so Python
writes warnings as bare sentences between Spark's own lines; they get a logger's name here.
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
    """Return True if Spark has started this process for work in Python."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return str(getattr(main, "name", "")).startswith("pyspark.") or TaskContext.get() is not None


def spare_modules() -> None:
    """Exclude existing objects from garbage collection, at the beginning of a piece of Spark's work.

    PySpark collects garbage after each piece. With all modules of PySpark, pandas and Arrow that takes 70 ms, half as
    long as reading 64 MiB of a log. Objects that exist when the second piece in a process begins are excluded; by then
    everything has been imported. Nothing is done in other processes.
    """
    if is_worker() and next(_turns) == 2:
        gc.freeze()


def check_worker_python(spark: SparkSession) -> None:
    """Raise ConfigError if the workers of a session run a local Python that lacks this package.

    Runs an interpreter only if it differs from this process's. A session of Spark Connect has its workers elsewhere,
    and is not checked.
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
        # The same command that Spark is about to run itself.
        answer = subprocess.run(  # noqa: S603
            [path, "-c", _PROBE], capture_output=True, text=True, timeout=_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return  # no Python, or another problem: Spark reports it
    if missing := answer.stdout.split():
        raise ConfigError(f"Spark's workers run {path}, which has no {' and no '.join(missing)}: {_WAY_OUT}")


_HIDE: Final = "SPARK_HIDE_TRACEBACK"
"""PySpark's workers read it when they write an exception: ``spark.sql.execution.pyspark.udf.hideTraceback``."""

_LINE: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s", "%y/%m/%d %H:%M:%S"
"""Format and time of a log line, like Spark's own."""

_Item = TypeVar("_Item")


@contextmanager
def one_sentence() -> Generator[None, None, None]:
    """Let Spark show an error of ours that leaves this block as its class and its sentence.

    The setting is that of a worker process, which ends with the error; a driver, which continues, would pass it to the
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
    """Yield the items; an error of ours on the way is shown as by :func:`one_sentence`."""
    with one_sentence():
        yield from items


@functools.cache
def _name_loggers() -> None:
    """In a process that Spark has started: where logging is set up, or is later, nothing changes."""
    if logging.lastResort is not None and is_worker():
        logging.lastResort.setFormatter(logging.Formatter(*_LINE))
