"""librdkafka's mock cluster, which returns the errors chosen by a test. It needs no JVM, and is ready in milliseconds.

It is called through ctypes, because the Python binding does not expose it. It has no topic ids, and does not answer
``describe``.
"""

from __future__ import annotations

import ctypes
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import confluent_kafka
from confluent_kafka import KafkaError

FETCH: Final = 1
LIST_OFFSETS: Final = 2
METADATA: Final = 3
OFFSET_COMMIT: Final = 8
OFFSET_FETCH: Final = 9
OFFSET_FOR_LEADER_EPOCH: Final = 23

_PRODUCER: Final = 0
_POINTER: Final = ctypes.c_void_p
_TEXT: Final = ctypes.c_char_p


class MockKafka:
    """Cluster of mock brokers in this process."""

    def __init__(self, library: Any, cluster: int) -> None:
        self._library = library
        self._cluster = cluster
        self.bootstrap_servers: str = library.rd_kafka_mock_cluster_bootstraps(cluster).decode()

    def make_topic(self, topic: str, partitions: int = 1) -> None:
        code = self._library.rd_kafka_mock_topic_create(self._cluster, topic.encode(), partitions, 1)
        assert code == KafkaError.NO_ERROR

    def set_topic_error(self, topic: str, code: int) -> None:
        """From now on, answer with this error in the topic's metadata; ``NO_ERROR`` ends this."""
        self._library.rd_kafka_mock_topic_set_error(self._cluster, topic.encode(), code)

    def set_leader(self, topic: str, partition: int, broker: int) -> None:
        """Set the partition's leader; -1 means none."""
        assert self._library.rd_kafka_mock_partition_set_leader(self._cluster, topic.encode(), partition, broker) == 0

    def set_down(self, broker: int) -> None:
        """Close the broker's connections and refuse new ones, as if it had been killed."""
        assert self._library.rd_kafka_mock_broker_set_down(self._cluster, broker) == 0

    def set_up(self, broker: int) -> None:
        """Accept connections again."""
        assert self._library.rd_kafka_mock_broker_set_up(self._cluster, broker) == 0

    def push_errors(self, request: int, *codes: int) -> None:
        """Set the errors of the next answers to this kind of request."""
        array = (ctypes.c_int * len(codes))(*codes)
        self._library.rd_kafka_mock_push_request_errors_array(self._cluster, request, len(codes), array)


@contextmanager
def mock_kafka(brokers: int = 1) -> Generator[MockKafka]:
    """Run a cluster until the end of the block."""
    library = _library()
    conf = library.rd_kafka_conf_new()
    failure = ctypes.create_string_buffer(256)
    library.rd_kafka_conf_set(conf, b"log_level", b"0", failure, len(failure))
    client = library.rd_kafka_new(_PRODUCER, conf, failure, len(failure))
    assert client, failure.value
    cluster = library.rd_kafka_mock_cluster_new(client, brokers)
    try:
        yield MockKafka(library, cluster)
    finally:
        library.rd_kafka_mock_cluster_destroy(cluster)
        library.rd_kafka_destroy(client)


def _library() -> Any:
    """Return the library instance that the binding has loaded."""
    packages = Path(confluent_kafka.__file__).parent.parent
    (path,) = packages.glob("confluent_kafka.libs/librdkafka-*")
    library: Any = ctypes.CDLL(str(path))
    # By default ctypes truncates results that are pointers.
    for name, result, arguments in (
        ("conf_new", _POINTER, []),
        ("conf_set", ctypes.c_int, [_POINTER, _TEXT, _TEXT, _TEXT, ctypes.c_size_t]),
        ("new", _POINTER, [ctypes.c_int, _POINTER, _TEXT, ctypes.c_size_t]),
        ("destroy", None, [_POINTER]),
        ("mock_cluster_new", _POINTER, [_POINTER, ctypes.c_int]),
        ("mock_cluster_destroy", None, [_POINTER]),
        ("mock_cluster_bootstraps", _TEXT, [_POINTER]),
        ("mock_topic_create", ctypes.c_int, [_POINTER, _TEXT, ctypes.c_int, ctypes.c_int]),
        ("mock_topic_set_error", None, [_POINTER, _TEXT, ctypes.c_int]),
        ("mock_partition_set_leader", ctypes.c_int, [_POINTER, _TEXT, ctypes.c_int32, ctypes.c_int32]),
        ("mock_broker_set_down", ctypes.c_int, [_POINTER, ctypes.c_int32]),
        ("mock_broker_set_up", ctypes.c_int, [_POINTER, ctypes.c_int32]),
        ("mock_push_request_errors_array", None, [_POINTER, ctypes.c_int16, ctypes.c_size_t, _POINTER]),
    ):
        function = getattr(library, f"rd_kafka_{name}")
        function.restype, function.argtypes = result, arguments
    return library
