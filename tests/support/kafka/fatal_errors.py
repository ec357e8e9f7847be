"""A fatal error as confluent-kafka raises it: a KafkaError, which is not a BaseException."""

from __future__ import annotations

import ctypes
from typing import Final

from confluent_kafka import KafkaError

FATAL: Final = KafkaError(KafkaError._FENCED, "another client", fatal=True)


def raise_fatal(_: str) -> None:
    """Statistics callback that raises a KafkaError as the library does. Python's ``raise`` cannot do that."""
    ctypes.pythonapi.PyErr_SetObject(ctypes.py_object(KafkaError), ctypes.py_object(FATAL))
