"""The Python processes in which Spark looks sources up, plans and runs tasks, one piece of work after the other.

The JVM starts them, for planning beside the driver as well as for tasks: what ``PYSPARK_PYTHON`` named when the session
began, or else the first ``python3`` on the path, which is not the driver's own where that is of an environment that is
not activated.
"""

from __future__ import annotations

import gc
import itertools
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext

from tieredstore.errors import ConfigError

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
    return str(getattr(main, "name", "")).startswith("pyspark.")


def spare_modules() -> None:
    """As a piece of work of Spark's begins: have the garbage collector pass over what its process keeps of the last.

    PySpark collects garbage after each of them. With all modules of PySpark, pandas and Arrow to look at that takes
    70 ms, half as long as reading 64 MiB of a log. What there is when the second one in a process begins is not looked
    at any more; by then everything has been imported. Nothing is done in other processes.
    """
    if (is_worker() or TaskContext.get() is not None) and next(_turns) == 2:
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
