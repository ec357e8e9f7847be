"""A fatal error as confluent-kafka raises it: a KafkaError, which is no BaseException."""

from __future__ import annotations

import ctypes
from typing import Final

from confluent_kafka import KafkaError

FATAL: Final = KafkaError(KafkaError._FENCED, "another client", fatal=True)


def raise_fatal(_: str) -> None:
    """Raise a KafkaError as the library does, which no ``raise`` of Python can. It is a callback for statistics."""
    ctypes.pythonapi.PyErr_SetObject(ctypes.py_object(KafkaError), ctypes.py_object(FATAL))
