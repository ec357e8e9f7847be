"""The Python processes in which Spark looks sources up, plans and runs tasks, one piece of work after the other."""

from __future__ import annotations

import gc
import itertools
import sys
from typing import Final

from pyspark import TaskContext

_turns: Final = itertools.count(1)


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
