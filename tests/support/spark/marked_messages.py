"""Slow transformer that records which executor processed which record."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

from tests.support.network.connections import parent_of
from tieredstore.pipelines.transforming import Message

FOLDER: Final = "TIEREDSTORE_TEST_MARKS"
"""Variable of the executors' environment: the folder for notes, with one file per executor."""

_MESSAGE_S: Final = 0.01


def slowly(message: Message) -> Message:
    """Pause, and note the record in the executor's file; return the message unchanged."""
    time.sleep(_MESSAGE_S)
    # This worker's parent is PySpark's daemon, whose parent is the executor.
    with (Path(os.environ[FOLDER]) / str(parent_of(os.getppid()))).open("a") as marks:
        marks.write(f"{message.partition} {message.offset}\n")
    return message


def marks_of(folder: Path) -> dict[str, list[tuple[int, int]]]:
    """Return the partitions and offsets of the records that each executor processed, with repetitions."""
    marks: dict[str, list[tuple[int, int]]] = {}
    for path in folder.iterdir():
        lines = [line.split() for line in path.read_text().splitlines()]
        marks[path.name] = [(int(partition), int(offset)) for partition, offset in lines]
    return marks
