"""A transformer that is slow, and notes which executor has worked on which record, for tests of who does what."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

from tests.support.connections import parent_of
from tieredstore.pipelines.transforming import Message

FOLDER: Final = "TIEREDSTORE_TEST_MARKS"
"""In the environment of executors: where they note it, each in a file of its own."""

_MESSAGE_S: Final = 0.01


def slowly(message: Message) -> Message:
    """The message as it is."""
    time.sleep(_MESSAGE_S)
    # The parent of this worker is PySpark's daemon, and that one's is the executor.
    with (Path(os.environ[FOLDER]) / str(parent_of(os.getppid()))).open("a") as marks:
        marks.write(f"{message.partition} {message.offset}\n")
    return message


def marks_of(folder: Path) -> dict[str, list[tuple[int, int]]]:
    """Partitions and offsets of the records that each executor has worked on, as often as it has."""
    marks: dict[str, list[tuple[int, int]]] = {}
    for path in folder.iterdir():
        lines = [line.split() for line in path.read_text().splitlines()]
        marks[path.name] = [(int(partition), int(offset)) for partition, offset in lines]
    return marks
