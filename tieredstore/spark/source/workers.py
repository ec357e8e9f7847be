"""The Python processes in which Spark runs tasks, one after the other."""

from __future__ import annotations

import gc
import itertools
from typing import Final

from pyspark import TaskContext

_tasks: Final = itertools.count(1)


def spare_modules() -> None:
    """As a task of Spark begins: have the garbage collector pass over what its process keeps from task to task.

    PySpark collects garbage after every task. With all modules of PySpark, pandas and Arrow to look at that takes
    70 ms, half as long as reading 64 MiB of a log. What there is when the second task of a process begins is not looked
    at any more; by then everything has been imported. Nothing is done outside of tasks.
    """
    if TaskContext.get() is not None and next(_tasks) == 2:
        gc.freeze()
