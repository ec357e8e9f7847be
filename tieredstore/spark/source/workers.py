"""Python processes of Spark. In such a process Spark finds data sources, plans queries or runs tasks, one after the
other.

The JVM starts these processes with the ``PYSPARK_PYTHON`` that was set when the session began, or else with the first
``python3`` on the path. Without an activated environment, this is another Python than the driver's.

Spark shows exceptions of these processes with a long traceback. This module hides the traceback of this package's
errors, because their text is enough. It also adds the logger's name to warnings, because logging is not configured in
these processes.
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
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pyspark import TaskContext
from pyspark.serializers import CPickleSerializer

from tieredstore.errors import ConfigError, TieredStoreError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_turns: Final = itertools.count(1)
_pickle: Final[Any] = CPickleSerializer()  # PySpark has no types for its pickler

_NEEDED: Final = "tieredstore", "pyarrow"
_PROBE: Final = f"import importlib.util as u; print(*(n for n in {_NEEDED} if u.find_spec(n) is None))"
_TIMEOUT_S: Final = 60
_WAY_OUT: Final = (
    "before the session begins, set PYSPARK_PYTHON to a Python that has it, for example the driver's: "
    'os.environ["PYSPARK_PYTHON"] = sys.executable'
)


def is_worker() -> bool:
    """Return True if Spark has started this process to run Python code."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return str(getattr(main, "name", "")).startswith("pyspark.") or TaskContext.get() is not None


def spare_modules(turns: Iterator[int] = _turns) -> None:
    """Exclude imported modules from garbage collection. Spark's processes call this before each task or planning
    request.

    PySpark collects garbage after each task. The modules of PySpark, pandas and Arrow make each collection take 70 ms,
    half as long as reading 64 MiB of a log.

    The function acts once in a process, at its second call, because all modules are imported by then. In processes that
    Spark did not start, the function never acts. ``turns`` counts the calls.
    """
    if is_worker() and next(turns) == 2:
        gc.freeze()


def pack(value: object) -> bytes:
    """Pickle a value for another process of the same Spark application."""
    data: bytes = _pickle.dumps(value)
    return data


def unpack(data: bytes | bytearray) -> Any:
    """Unpickle a value of :func:`pack`."""
    return _pickle.loads(bytes(data))


def check_worker_python(spark: SparkSession) -> None:
    """Raise ConfigError if a session's workers run a local Python that lacks this package.

    If the workers' Python is not the Python of this process, the check runs the workers' Python. Workers of a Spark
    Connect session are not checked, because they run on other machines.
    """
    from pyspark.errors import PySparkAttributeError  # noqa: PLC0415  as in spark/__init__.py

    try:
        command: str = spark.sparkContext.pythonExec
    except (AttributeError, PySparkAttributeError):
        return
    path = shutil.which(command)
    if path is None:
        raise ConfigError(f"Spark's workers need {command!r}, which does not exist: {_WAY_OUT}")
    # Compare folders without resolving links, because links in two environments may point to the same Python. In one
    # folder, `python` and `python3` have the same packages.
    if Path(path).absolute().parent == Path(sys.executable).absolute().parent:
        return
    try:
        # It is safe to run this Python, because Spark is about to run it anyway.
        answer = subprocess.run(  # noqa: S603
            [path, "-c", _PROBE], capture_output=True, text=True, timeout=_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return  # if the command cannot run or is no Python, Spark itself reports it
    if missing := answer.stdout.split():
        raise ConfigError(f"Spark's workers run {path}, which has no {' and no '.join(missing)}: {_WAY_OUT}")


_HIDE: Final = "SPARK_HIDE_TRACEBACK"
"""PySpark's workers read this variable when they write an exception. Spark sets the variable from its setting
``spark.sql.execution.pyspark.udf.hideTraceback``.
"""

_LINE: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s", "%y/%m/%d %H:%M:%S"
"""Format of log lines and of their times, like Spark's own."""

_Item = TypeVar("_Item")


@contextmanager
def one_sentence() -> Generator[None, None, None]:
    """Make Spark show an error that this package raises in the ``with`` block as one sentence, without a traceback.

    A worker hides the traceback by Spark's environment variable ``SPARK_HIDE_TRACEBACK``. This is safe, because the
    error ends the worker. A driver does not set the variable, because the workers of the next session would inherit it.

    In a worker, this function also adds the logger's name to each warning.
    """
    _name_loggers()
    try:
        yield
    except TieredStoreError as error:
        if is_worker():
            os.environ[_HIDE] = "1"
        raise error.with_traceback(None) from None


def each_in_one_sentence(items: Iterator[_Item]) -> Iterator[_Item]:
    """Yield the items. If this package raises an error on the way, show it as :func:`one_sentence` does."""
    with one_sentence():
        yield from items


@functools.cache
def _name_loggers() -> None:
    """Add logger names to the warnings of a Spark process. If logging is configured, the function has no effect."""
    if logging.lastResort is not None and is_worker():
        logging.lastResort.setFormatter(logging.Formatter(*_LINE))
